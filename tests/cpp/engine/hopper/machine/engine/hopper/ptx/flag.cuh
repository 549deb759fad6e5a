// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "instructions.h"

namespace fa3::hopper::ptx {

inline void raise_flag(uint64_t* flag, uint64_t value) {
  machine::raise_flag(flag, value);
}
inline void wait_for_flag(const uint64_t* flag, uint64_t value) {
  machine::wait_for_flag(flag, value);
}
inline void take_back_flag(uint64_t* flag, uint64_t value) {
  machine::take_back_flag(flag, value);
}
inline void load_pair_if(bool condition, const float* pointer, float& first, float& second) {
  if (condition) machine::load_global(pointer);
  first = condition ? pointer[0] : 0;
  second = condition ? pointer[1] : 0;
}

}  // namespace fa3::hopper::ptx
