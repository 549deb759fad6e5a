// SPDX-License-Identifier: Apache-2.0
// What becomes of a finished work item: it is a tile, or a piece of one.
#pragma once

#include "engine/cuda/epilogue.cuh"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/piece/work_item.cuh"

namespace fa3::hopper {

// A warp's rows, the first of them `first_row` of the sequence.
template <ForwardConfig C, int Count>
__device__ __forceinline__ void store_tile(const ForwardParams& params, const ItemOf<C>& item,
                                           int first_row, float (&output)[Count],
                                           const cuda::RowState& rows) {
  if constexpr (C.widens()) {
#pragma unroll
    for (float& o : output) o *= item.place.value_scale;
  }
  if constexpr (C.cuts()) {
    if (item.place.slot != KeyPiece::kWhole) {
      cuda::store_piece(params.pieces, item.place.slot, params.output.pack, item.queries, first_row,
                        first_row - item.first_row, output, rows);
      return;
    }
  }
  cuda::store_rows<C.output(), C.general() || C.decodes(), C.stores_any_rows()>(
      params.output, item.queries, first_row, output, rows);
}

}  // namespace fa3::hopper
