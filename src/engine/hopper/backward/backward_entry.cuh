// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one row of compiled_backward.h.
#pragma once

#include "engine/hopper/backward/backward_entry.h"
#include "engine/hopper/backward/backward_kernel.cuh"
#include "engine/hopper/backward/postprocess.cuh"
#include "engine/hopper/backward/preprocess.cuh"

namespace fa3::hopper {

template <int Row, Element E, Variant V>
BackwardKernel backward_entry() {
  constexpr BackwardConfig kMain = kBackwardTable[Row].config.with(E, V);
  constexpr BackwardConfig kRows = kMain.without_cap();
  return {kMain, reinterpret_cast<const void*>(&preprocess_kernel<kRows>),
          reinterpret_cast<const void*>(&backward_kernel<kMain>),
          reinterpret_cast<const void*>(&postprocess_kernel<kRows>), backward_smem_bytes<kMain>()};
}

}  // namespace fa3::hopper
