// SPDX-License-Identifier: Apache-2.0
// The sums of dQ in global memory: float32, block of query rows by block, in the order in which the
// accumulators of warps hold it (DqLayout). The lanes' first accumulators are neighbours, then
// their second ones, and so on, so that a warp adds to 128 consecutive bytes.
#pragma once

#include "engine/ampere/config/backward_config.h"

namespace fa3::ampere {

template <DqLayout Layout>
using DqAccumulators = float[Layout.row_tiles()][Layout.column_blocks()][4];

// Where a warp's sums begin for a lane.
template <DqLayout Layout>
__device__ __forceinline__ int64_t dq_place(int64_t block, int warp, int lane) {
  return block * Layout.block_floats() + warp * Layout.accumulators() * kWarpSize + lane;
}

// use(accumulator, its place).
template <DqLayout Layout, class Use>
__device__ __forceinline__ void for_each_sum(DqAccumulators<Layout>& dq, float* mine, Use use) {
#pragma unroll
  for (int i = 0; i < Layout.accumulators(); ++i) {
    use(dq[i / 4 / Layout.column_blocks()][i / 4 % Layout.column_blocks()][i % 4],
        mine + i * kWarpSize);
  }
}

}  // namespace fa3::ampere
