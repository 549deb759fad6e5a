// SPDX-License-Identifier: Apache-2.0
// Adds accumulators to sums in global memory (accum_layout.h). CTAs add in any order.
#pragma once

#include "engine/hopper/config/accum_layout.h"
#include "engine/hopper/ptx/global.cuh"

namespace fa3::hopper {

// A part of a block of rows, by the warpgroup's threads.
template <AccumLayout Layout>
__device__ __forceinline__ void add_part(float* block, int part,
                                         const float (&sums)[Layout.floats()], int thread) {
  float* const mine = block + Layout.offset(part, 0, thread);
#pragma unroll
  for (int group = 0; group < Layout.groups(); ++group) {
    const float(&values)[AccumLayout::kGroup] =
        reinterpret_cast<const float(&)[AccumLayout::kGroup]>(sums[group * AccumLayout::kGroup]);
    ptx::red_global_add_f32x4(mine + Layout.offset(0, group, 0), values);
  }
}

}  // namespace fa3::hopper
