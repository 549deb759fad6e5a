// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, with numbers.
#pragma once

#include "instructions.h"

namespace fa3::hopper::ptx {

inline void red_global_add_f32x4(float* pointer, const float (&value)[4]) {
  machine::add_global(pointer, sizeof(value));
  for (int i = 0; i < 4; ++i) pointer[i] += value[i];
}

}  // namespace fa3::hopper::ptx
