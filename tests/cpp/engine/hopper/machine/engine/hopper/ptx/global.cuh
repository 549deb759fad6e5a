// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "instructions.h"

namespace fa3::hopper::ptx {

inline void store_global_if(bool condition, void* pointer, const uint32_t (&)[4]) {
  if (condition) machine::store_global(pointer);
}
inline void store_global_if(bool condition, float* pointer, float value) {
  if (condition) *pointer = machine::settled(value);
}

}  // namespace fa3::hopper::ptx
