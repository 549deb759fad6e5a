// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "instructions.h"

namespace fa3::hopper::ptx {

inline int ld_acquire(const int* counter) {
  return machine::load_semaphore(counter);
}
inline void add_release(int* counter, int value) {
  machine::add_to_semaphore(counter, value);
}

}  // namespace fa3::hopper::ptx
