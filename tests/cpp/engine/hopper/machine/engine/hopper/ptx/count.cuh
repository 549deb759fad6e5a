// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "instructions.h"

namespace fa3::hopper::ptx {

inline uint64_t add_in_order(uint64_t* at, uint64_t value) {
  return machine::count_split(at, value);
}
inline bool replace(uint64_t* at, uint64_t expected, uint64_t value) {
  return machine::replace_count(at, expected, value);
}

}  // namespace fa3::hopper::ptx
