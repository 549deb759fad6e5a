// SPDX-License-Identifier: Apache-2.0
// Included by the generated source of each row of kBackward.
#pragma once

#include "engine/ampere/backward/backward_kernel.cuh"
#include "engine/ampere/backward/gated_preprocess.cuh"
#include "engine/ampere/backward/postprocess.cuh"
#include "engine/ampere/backward/preprocess.cuh"
#include "engine/ampere/instances/backward_entry.h"

namespace fa3::ampere {

template <BackwardConfig kMain>
BackwardKernel backward_kernel_of() {
  static_assert(BackwardSmem<kMain>::kBytes <= kMain.smem_class);
  constexpr int kLanes = lanes_per_row(kMain.head_dim_v);
  return {kMain,
          reinterpret_cast<const void*>(&preprocess_kernel<kMain.element, kLanes>),
          reinterpret_cast<const void*>(&gated_preprocess_kernel<kMain.element, kLanes>),
          reinterpret_cast<const void*>(&backward_kernel<kMain>),
          reinterpret_cast<const void*>(&postprocess_kernel<kMain.of_dq()>),
          BackwardSmem<kMain>::kBytes};
}

template <int Row, Element E>
BackwardKernel backward_entry() {
  return backward_kernel_of<kernel_of(kBackward[Row], E)>();
}

}  // namespace fa3::ampere
