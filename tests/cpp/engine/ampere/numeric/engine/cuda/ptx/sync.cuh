// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, on the model. CTAs come one after the other, in the order of their
// numbers: one that waits for a later one waits for ever.
#pragma once

#include "instructions.h"

namespace fa3::cuda {

inline int ld_acquire(const int* counter) {
  return machine::load_semaphore(counter);
}
inline void add_release(int* counter, int value) {
  machine::add_to_semaphore(counter, value);
}

inline void bar_sync(int id, int threads) {
  machine::named_sync(id, threads);
}
inline void bar_arrive(int id, int threads) {
  machine::named_arrive(id, threads);
}

}  // namespace fa3::cuda
