// SPDX-License-Identifier: Apache-2.0
// Splits of a tile, combined in registers by the CTA that opens it. That has computed its own split
// last: it keeps it in its accumulators, adds what the CTAs of later ranges have stored of theirs,
// and stores the tile's rows like those of a whole tile. Where tiles have few splits, that is less
// to load than for a CTA, or a kernel, that comes last, and no kernel has to start.
//
// Warps wait for warps: warp w of each of these CTAs has the same rows of the tile. Behind the rows
// of a later split it raises a flag, which the opener's warp w waits for. Flags lie in the caller's
// workspace, which holds anything at first: a flag is raised once it has the launch's own number
// and one. The opener takes it back, so that a captured launch finds it as it left it.
//
// Nobody waits for ever. A CTA waits behind all of its own splits, and for CTAs of later ranges
// alone, which have smaller numbers (stream_k_tiles.cuh); that of the last range waits for none. A
// launch has no more CTAs than the GPU has room for, and where others take that room, CTAs start in
// the order of their numbers: those that are waited for run or are done.
//
// The sums are those of the splits one after the other: their order depends on how many there are,
// and on nothing else. Next: forward/policies/sum.cuh.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/softmax/softmax.cuh"
#include "engine/hopper/combine/combine_row.cuh"
#include "engine/hopper/config/sm90.h"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/ptx/global.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/scheduler/work_tile.cuh"

namespace fa3::hopper {

// Whether a tile's split is one that stays in registers until the later ones have joined it.
template <Kernel C>
__device__ __forceinline__ bool joins_later_splits(const WorkTileOf<C>& work) {
  if constexpr (C.combine() == CombineKind::kOpener) return work.place.later_splits > 0;
  return false;
}

// Says that a warp's rows of a split are stored.
class SplitFlag {
 public:
  __device__ __forceinline__ SplitFlag(const SplitCounters& counts, int number)
      : cell_(counts.cells + number), none_(counts.launch << SplitCounters::kBits) {}

  __device__ __forceinline__ void raise() const { ptx::raise_flag(cell_, none_ + 1); }
  __device__ __forceinline__ void wait() const { ptx::wait_for_flag(cell_, none_ + 1); }
  __device__ __forceinline__ void take_back() const { ptx::take_back_flag(cell_, none_); }

 private:
  uint64_t* const cell_;
  const uint64_t none_;
};

// By all lanes of a warp: `partial` is a split that goes on with a tile.
template <Kernel C>
__device__ __forceinline__ SplitFlag flag_of(const ForwardParams& params, int partial) {
  const unsigned warp = (thread_in_block() - kWarpgroupSize) / kWarpSize;
  return {params.counts, partial * C.consumer_warps() + int(warp)};
}

// The warp has stored its rows of a split that goes on with a tile.
template <Kernel C>
__device__ __forceinline__ void tell_opener(const ForwardParams& params, int partial) {
  if (!opener_combines(params)) return;
  __syncwarp();
  if (ptx::lane() == 0) flag_of<C>(params, partial).raise();
}

// A thread's part of a split of its two rows.
struct SplitRows {
  const float* o[kRowsPerThread];  // from the lane's first column on
  int columns[kRowsPerThread];     // left of the split's there; 0: the row does not exist
  PartialSum sum[kRowsPerThread];

  // `tile_row`: the warp's first, of the tile; `rows_left`: of the sequence, from there on.
  __device__ __forceinline__ SplitRows(const PartialOutput& partials, int partial, int tile_row,
                                       int rows_left) {
    const int lane = int(thread_in_block() % kWarpSize), column = fragment_lane_column(lane);
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int row = lane / kQuadLanes + r * kRowDistance;
      const bool exists = row < rows_left && tile_row + row < partials.rows;
      const int64_t at = partials.row(partial, tile_row + row);
      o[r] = partials.o + at * partials.columns + column;
      columns[r] = exists ? partials.columns - column : 0;
      sum[r] = load_partial_sum(exists, partials.sums + at);
    }
  }
};

// What becomes of a row's sums where a split joins them.
struct JoinFactors {
  float own[kRowsPerThread];
  float split[kRowsPerThread];  // of its O, which is normalised

  // References move to the split's where that is larger. A split without keys counts for nothing,
  // nor do sums without; a NaN counts.
  __device__ __forceinline__ JoinFactors(RowState& rows, const PartialSum (&sum)[kRowsPerThread]) {
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const float ref = rows.ref[r], to = fmaxf(ref, sum[r].ref);
      own[r] = ref == -kInfinity ? 0.0f : ex2(ref - to);
      split[r] = sum[r].sum == 0 ? 0.0f : sum[r].sum * ex2(sum[r].ref - to);
      rows.ref[r] = to;
      // The four lanes of a row have a part of its sum each.
      rows.sum[r] = rows.sum[r] * own[r] + split[r] / kQuadLanes;
    }
  }
};

// Adds elements [Begin, Begin + Count) of the thread's O. What a split without keys has stored is
// left out, whatever it is.
template <int Begin, int Count, int All>
__device__ __forceinline__ void join_output(float (&output)[All], const SplitRows& split,
                                            const JoinFactors& factors) {
  float o[Count];
#pragma unroll
  for (int i = 0; i < Count; i += 2) {
    const int row = fragment_row_index(i), column = fragment_column(Begin + i);
    ptx::load_pair_if(column < split.columns[row], split.o[row] + column, o[i], o[i + 1]);
  }
#pragma unroll
  for (int i = 0; i < Count; ++i) {
    const int row = fragment_row_index(i);
    const float part = factors.split[row] == 0 ? 0.0f : o[i];
    output[Begin + i] = output[Begin + i] * factors.own[row] + factors.split[row] * part;
  }
}

template <int Begin, int Count, int All>
__device__ __forceinline__ void join_outputs(float (&output)[All], const SplitRows& split,
                                             const JoinFactors& factors) {
  join_output<Begin, Count>(output, split, factors);
  if constexpr (Begin + Count < All) join_outputs<Begin + Count, Count>(output, split, factors);
}

// The thread's rows of the tile that `work` opens, of which its own split is in registers.
template <Kernel C>
__device__ __forceinline__ void add_later_splits(const ForwardParams& params,
                                                 const WorkTileOf<C>& work, int first_row,
                                                 float (&output)[C.shape.head_dim_v / 2],
                                                 RowState& rows) {
  // Elements of O that are on their way at once: as many as there are registers for.
  constexpr int kAtOnce = C.shape.head_dim_v <= 128 ? C.shape.head_dim_v / 2 : 32;
  const bool is_empty[kRowsPerThread] = {quad_sum(rows.sum[0]) == 0, quad_sum(rows.sum[1]) == 0};
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    if (is_empty[r]) rows.ref[r] = -kInfinity;
  }
#pragma unroll
  for (int i = 0; i < C.shape.head_dim_v / 2; ++i) {
    if (is_empty[fragment_row_index(i)]) output[i] = 0;
  }
  const int tile_row = first_row - work.first_row;
  const int rows_left = params.output.pack.rows(work.queries.count) - first_row;
  const int opener = work.place.partial - int(gridDim.x);
#pragma unroll 1
  for (int i = 1; i <= work.place.later_splits; ++i) {
    const int partial = opener + (i << params.schedule.groups_log2);
    const SplitFlag flag = flag_of<C>(params, partial);
    flag.wait();
    const SplitRows split(params.partials, partial, tile_row, rows_left);
    const JoinFactors factors(rows, split.sum);
    join_outputs<0, kAtOnce>(output, split, factors);
    __syncwarp();  // all lanes have seen the flag
    if (ptx::lane() == 0) flag.take_back();
  }
}

}  // namespace fa3::hopper
