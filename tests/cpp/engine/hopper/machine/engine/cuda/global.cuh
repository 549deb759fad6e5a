// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, on the machine of the protocol test.
#pragma once

#include "instructions.h"

namespace fa3::cuda {

inline void load_global_if(bool, const void*, uint32_t (&value)[4]) {
  for (uint32_t& word : value) word = 0;  // tensors have no memory here
}
inline void store_global_if(bool condition, void* pointer, const uint32_t (&)[4]) {
  if (condition) machine::store_global(pointer);
}
inline void store_global_if(bool condition, float* pointer, float value) {
  if (condition) *pointer = machine::settled(value);
}

}  // namespace fa3::cuda
