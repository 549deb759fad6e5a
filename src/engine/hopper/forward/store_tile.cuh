// SPDX-License-Identifier: Apache-2.0
// What becomes of a finished work item: it is a tile, or a split of one.
#pragma once

#include "engine/cuda/epilogue.cuh"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/scheduler/work_tile.cuh"

namespace fa3::hopper {

// A warp's rows, the first of them `first_row` of the sequence.
template <ForwardConfig C, int Count>
__device__ __forceinline__ void store_tile(const ForwardParams& params, const WorkTileOf<C>& item,
                                           int first_row, float (&output)[Count],
                                           const cuda::RowState& rows) {
  if constexpr (C.dequantizes()) {
#pragma unroll
    for (float& o : output) o *= item.place.value_scale;
  }
  if constexpr (C.can_split()) {
    if (item.place.partial != TileSplit::kNotSplit) {
      cuda::store_partial(params.partials, item.place.partial, params.output.pack, item.queries,
                          first_row, first_row - item.first_row, output, rows);
      return;
    }
  }
  cuda::store_rows<C.output(), C.general() || C.always_splits(), C.stores_any_rows()>(
      params.output, item.queries, first_row, output, rows);
}

}  // namespace fa3::hopper
