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

inline uint64_t add_in_order(uint64_t* at, uint64_t value) {
  return machine::count_split(at, value);
}
inline bool replace(uint64_t* at, uint64_t expected, uint64_t value) {
  return machine::replace_count(at, expected, value);
}

inline int ld_acquire(const int* counter) {
  return machine::load_semaphore(counter);
}
inline void add_release(int* counter, int value) {
  machine::add_to_semaphore(counter, value);
}

inline void red_global_add_f32x4(float* pointer, const float (&value)[4]) {
  for (float x : value) machine::settled(x);
  machine::add_global(pointer, sizeof(value));
}

}  // namespace fa3::hopper::ptx
