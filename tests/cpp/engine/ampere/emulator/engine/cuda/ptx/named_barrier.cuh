// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, on the emulator.
#pragma once

#include "emulator.h"

namespace fa3::cuda {

inline void bar_sync(int id, int threads) {
  emulator::barrier_sync(id, threads);
}
inline void bar_arrive(int id, int threads) {
  emulator::barrier_arrive(id, threads);
}

}  // namespace fa3::cuda
