// SPDX-License-Identifier: Apache-2.0
// After the main kernel: dQ from float32 sums in accumulator order (dq_sums.cuh) to rows of 16-bit
// elements, times the softmax scale. Limited by memory bandwidth.
#pragma once

#include "engine/ampere/backward/dq_sums.cuh"
#include "engine/ampere/backward/store_rows.cuh"

namespace fa3::ampere {

template <BackwardConfig C>
__device__ __forceinline__ void store_dq(const PostprocessParams& p, const RowBlock& rows,
                                         int first_row, float scale) {
  constexpr DqLayout kDq = C.dq();
  const int warp = int(threadIdx.x) / kWarpSize, lane = int(threadIdx.x) % kWarpSize;
  const QueryScratch& scratch = p.rows.scratch;
  const ScratchPlace place = scratch_place(p.rows, rows.sequence, rows.begin, C.block_m);
  const int64_t block = scratch.numbers.block(place, rows.head, first_row / C.block_m);
  DqAccumulators<kDq> sums;
  for_each_sum<kDq>(sums, scratch.dq_accum + dq_place<kDq>(block, warp, lane),
                    [](float& sum, const float* from) { sum = *from; });
#pragma unroll
  for (int r = 0; r < kDq.row_tiles(); ++r) {
    const int row = first_row + kDq.row(warp, r);
    store_rows<C.element>(p.dq, rows, row, sums[r], scale,
                          [&](int block) { return kDq.column(warp, block); });
  }
}

template <BackwardConfig C>
__global__ void __launch_bounds__(kBackwardThreads)
    postprocess_kernel(const __grid_constant__ PostprocessParams p) {
  // The last first: the L2 cache still has them.
  const RowBlock rows = RowBlock::of(p.grid, int(gridDim.x - 1 - blockIdx.x));
  int first_row = rows.block * C.block_m;
  if (first_row < rows.used) {
    const bool one_key = rows_of(p.lengths_k, rows.sequence).used == 1;
    store_dq<C>(p, rows, first_row, one_key ? p.scale_of_one_key : p.scale);
    first_row += p.grid.blocks * C.block_m;
  }
  for (; first_row < rows.owned; first_row += p.grid.blocks * C.block_m) {
    const int end = min(first_row + C.block_m, rows.owned);
    clear_rows<kBackwardThreads>(p.dq.tensor, rows, first_row, end);
  }
}

}  // namespace fa3::ampere
