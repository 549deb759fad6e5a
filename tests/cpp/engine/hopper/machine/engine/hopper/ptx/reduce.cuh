// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "instructions.h"

namespace fa3::hopper::ptx {

inline void red_global_add_f32x4(float* pointer, const float (&value)[4]) {
  for (float x : value) machine::settled(x);
  machine::add_global(pointer, sizeof(value));
}

}  // namespace fa3::hopper::ptx
