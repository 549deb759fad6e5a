// SPDX-License-Identifier: Apache-2.0
//
// What the machine has: AMX tiles, and its second-level cache.
#pragma once

#include <cstdint>
#include <string>

namespace fa3::cpu {

// Whether the CPU has AMX tiles with bfloat16 products and the system lets this process use them.
// The system has to be asked: each thread with tiles needs 8 KiB more of saved state.
bool may_use_tiles();

// Size of one core's second-level cache; 1 MiB where the system does not tell.
int64_t l2_cache_bytes();

// What Linux says of it in /sys, which lies under `root`; 0: nothing.
int64_t l2_cache_bytes_under(const std::string& root);

}  // namespace fa3::cpu
