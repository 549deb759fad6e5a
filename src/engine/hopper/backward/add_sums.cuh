// SPDX-License-Identifier: Apache-2.0
// Adds accumulators to sums in global memory (sum_parts.h), in any order with those of other thread
// blocks.
#pragma once

#include "engine/hopper/config/sum_parts.h"
#include "engine/hopper/ptx/reduce.cuh"

namespace fa3::hopper {

// A part of a chunk, by the warpgroup's threads.
template <SumParts Parts>
__device__ __forceinline__ void add_part(float* chunk, int part,
                                         const float (&sums)[Parts.columns() / 2], int thread) {
  float* const mine = chunk + Parts.offset(part, 0, thread);
#pragma unroll
  for (int group = 0; group < Parts.groups(); ++group) {
    const float(&values)[SumParts::kGroup] =
        reinterpret_cast<const float(&)[SumParts::kGroup]>(sums[group * SumParts::kGroup]);
    ptx::red_global_add_f32x4(mine + Parts.offset(0, group, 0), values);
  }
}

}  // namespace fa3::hopper
