// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one row of compiled_backward.h.
#pragma once

#include "engine/hopper/backward/backward_entry.h"
#include "engine/hopper/backward/backward_kernel.cuh"
#include "engine/hopper/backward/postprocess.cuh"
#include "engine/hopper/backward/preprocess.cuh"

namespace fa3::hopper {

template <BackwardConfig C>
BackwardKernel backward_kernel_of() {
  return {C, reinterpret_cast<const void*>(&preprocess_kernel<C>),
          reinterpret_cast<const void*>(&backward_kernel<C>),
          reinterpret_cast<const void*>(&postprocess_kernel<C>), backward_smem_bytes<C>()};
}

template <int Row, Element E>
BackwardKernel backward_entry() {
  return backward_kernel_of<kBackwardTable[Row].config.with(E)>();
}

}  // namespace fa3::hopper
