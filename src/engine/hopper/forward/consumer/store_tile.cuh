// SPDX-License-Identifier: Apache-2.0
// The epilogue of a work tile, which is a whole tile or a split of one. Next:
// cuda/softmax/epilogue.cuh.
#pragma once

#include "engine/cuda/softmax/continued_rows.cuh"
#include "engine/cuda/softmax/epilogue.cuh"
#include "engine/hopper/combine/combine_opener.cuh"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward/consumer/consumer_state.cuh"
#include "engine/hopper/forward/consumer/staged_rows.cuh"

namespace fa3::hopper {

// A warp's rows, the first of them `first_row` of the sequence. IsLast: perhaps of the CTA's last
// tile, the only one that it may open without going through with it.
template <Kernel C, bool IsLast>
__device__ __forceinline__ void store_tile(const ForwardParams& params, const WorkTileOf<C>& work,
                                           int first_row, ThreadTile<C>& r, RowState rows) {
  if constexpr (C.dequantizes()) {
#pragma unroll
    for (float& o : r.output) o *= work.place.value_scale;
  }
  if constexpr (C.can_split()) {
    constexpr bool kMayOpen = C.combine() == CombineKind::kOpener;
    if (kMayOpen && IsLast && joins_later_splits<C>(work)) {
      if constexpr (kMayOpen) add_later_splits<C>(params, work, first_row, r.output, rows);
    } else if (work.place.partial != TileSplit::kNotSplit) {
      cuda::store_partial(params.partials, work.place.partial, params.output.pack, work.queries,
                          first_row, first_row - work.first_row, r.output, rows);
      if constexpr (kMayOpen) tell_opener<C>(params, work.place.partial);
      return;
    }
  }
  if constexpr (C.continued()) {
    cuda::store_continued_rows<C.element, C.general()>(params.output, params.before, work.queries,
                                                       first_row, r.output, rows);
    return;
  }
  constexpr bool kGeneral = C.general() || C.always_splits();
  constexpr bool kAnyRows = consumer_tuning(C).stores_any_rows;
  std::conditional_t<C.dropout(), KeptValues, PlainValues> values{};
  if constexpr (C.dropout()) values.scale = params.dropout.scale;
  cuda::store_rows<C.element, kGeneral, kAnyRows>(params.output, work.queries, first_row, r.output,
                                                  rows, values);
}

// Rows of dense e4m3 tiles: their numbers are multiplied once, by their values' scale and by what
// normalises them, and leave through the place of the earlier parts of O. `values` is what V's
// encoding leaves to do.
template <Kernel C, class Values>
__device__ __forceinline__ void stage_rows(const ForwardParams& params,
                                           const cuda::QueryRows& queries, int first_row,
                                           uint32_t place, ThreadTile<C>& r, const RowState& rows,
                                           const Values& values) {
  const cuda::ForwardOutput& to = params.output;
  const float sum[kRowsPerThread] = {quad_sum(rows.sum[0]), quad_sum(rows.sum[1])};
  if (to.lse.data != nullptr) {
    const cuda::LaneRows lane_rows(to.pack, queries, first_row, thread_in_block());
    cuda::store_lse(to.lse, queries.batch, lane_rows, rows.ref, sum);
  }
  float factor[kRowsPerThread] = {cuda::inverse_of(sum[0]), cuda::inverse_of(sum[1])};
  values.restore_normalised(r.output, factor);
  if (to.some_rows_see_no_key) {  // whatever the values are that they do not see
#pragma unroll
    for (int i = 0; i < C.shape.head_dim_v / 2; ++i) {
      const int row = fragment_row_index(i);
      if (rows.ref[row] == -kInfinity && sum[row] == 0.0f) r.output[i] = 0.0f;
    }
  }
  const StagedRows<C> staged(place);
  staged.wait();
  staged.put(r.output, factor);
  staged.send(params, queries, first_row);
}

// The LSE of what was added to the scores less a reference.
template <Kernel C>
__device__ __forceinline__ RowState with_references(const ConsumerState<C>& c, uint32_t stage,
                                                    RowState rows) {
  const float* const references =
      c.added_references(stage) + thread_in_block() % kWarpSize / kQuadLanes;
  rows.ref[0] += references[0] * kLog2E;
  rows.ref[1] += references[kRowDistance] * kLog2E;
  return rows;
}

// Algorithm 2, line 20. The next tile's work tile is the current one by now. IsLast: that may be
// the end of all tiles.
template <bool IsLast, Kernel C>
__device__ __forceinline__ void finish_tile(const ConsumerState<C>& c, ThreadTile<C>& r,
                                            const RowState& rows) {
  const uint32_t stage = c.stages.previous_work_tile();
  const WorkTileOf<C>& work = c.smem.work_tiles[stage];
  const int first_row = c.first_row_of(work);
  if constexpr (C.e4m3()) {
    c.promoted.add_to(r.output, c.promoted_sum_address());
    const auto values = ScoreHook<C>::values(c.params, work, c.smem.e4m3.tiles[stage]);
    if constexpr (consumer_tuning(C).stages_rows) {
      stage_rows<C>(c.params, work.queries, first_row, c.stages.at().promoted_sum(c.warp(), 0), r,
                    rows, values);
    } else {
      cuda::store_rows<C.element, C.general()>(c.params.output, work.queries, first_row, r.output,
                                               rows, values);
    }
  } else if constexpr (kAddsLines) {
    store_tile<C, IsLast>(c.params, work, first_row, r, with_references(c, stage, rows));
  } else {
    store_tile<C, IsLast>(c.params, work, first_row, r, rows);
  }
  c.stages.release_work_tile(stage);
}

}  // namespace fa3::hopper
