// SPDX-License-Identifier: Apache-2.0
// Rows that go on from a result over other keys.
#pragma once

#include "engine/cuda/softmax/continued_rows.cuh"
#include "engine/hopper/forward/policies/sum.cuh"

namespace fa3::hopper {

template <Kernel C>
requires(C.continued()) struct SumOf<C> : KeptSum<C> {
  template <bool IsLast, class Consumer, class Tile>
  __device__ __forceinline__ void finish(const Consumer& c, Tile& r, const RowState& rows) const {
    const uint32_t stage = c.stages.previous_work_tile();
    const WorkTileOf<C>& work = c.smem.work_tiles[stage];
    cuda::store_continued_rows<C.element, kTopLog2<C>, C.general()>(
        c.params.output, c.params.before, work.queries, c.first_row_of(work), r.output, rows);
    c.stages.release_work_tile(stage);
  }
};

}  // namespace fa3::hopper
