// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, on the emulator. CTAs come one after the other, in the order of their
// numbers: one that waits for a later one waits for ever.
#pragma once

#include <stdexcept>

#include "emulator.h"

namespace fa3::cuda {

inline int ld_acquire(const int* counter) {
  static const int* last = nullptr;
  static int times = 0;
  times = counter == last ? times + 1 : 0;
  last = counter;
  if (times > 100000) throw std::runtime_error("a CTA waits for ever for another one");
  emulator::yield();
  return *counter;
}
inline void add_release(int* counter, int value) {
  *counter += value;
}

}  // namespace fa3::cuda
