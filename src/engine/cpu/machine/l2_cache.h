// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace fa3::cpu {

// Size of one core's second-level cache; 1 MiB where the system does not tell.
int64_t l2_cache_bytes();

// What Linux says of it in /sys, which lies under `root`; 0: nothing.
int64_t l2_cache_bytes_under(const std::string& root);

}  // namespace fa3::cpu
