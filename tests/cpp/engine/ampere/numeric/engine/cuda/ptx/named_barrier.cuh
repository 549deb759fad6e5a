// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, on the model.
#pragma once

#include "instructions.h"

namespace fa3::cuda {

inline void bar_sync(int id, int threads) {
  machine::named_sync(id, threads);
}
inline void bar_arrive(int id, int threads) {
  machine::named_arrive(id, threads);
}

}  // namespace fa3::cuda
