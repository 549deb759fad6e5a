// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, with numbers.
#pragma once

#include "instructions.h"

namespace fa3::hopper::ptx {

inline void red_global_add(int64_t* pointer, int64_t value) {
  machine::add_global(pointer, sizeof(value));
  *pointer += value;
}
inline void red_global_max(int64_t* pointer, int64_t value) {
  machine::add_global(pointer, sizeof(value));
  *pointer = *pointer > value ? *pointer : value;
}

}  // namespace fa3::hopper::ptx
