// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fa3::cpu {

// Size of one core's second-level cache; 1 MiB where the system does not tell.
int64_t l2_cache_bytes();

}  // namespace fa3::cpu
