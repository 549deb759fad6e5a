// SPDX-License-Identifier: Apache-2.0
// The splits of tiles that a CTA computes, as work tiles. Next: split_tiles.cuh,
// stream_k_tiles.cuh.
#pragma once

#include "engine/cuda/softmax/epilogue.cuh"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/scheduler/sequence_window.cuh"
#include "engine/hopper/scheduler/work_tile.cuh"

namespace fa3::hopper {

// Stores a split of a tile: its rows are the tile's from `tile_row` on.
template <int Count>
__device__ __forceinline__ void store_partial(const cuda::PartialOutput& to, int partial,
                                              PackGqa pack, const cuda::QueryRows& queries,
                                              int first_row, int tile_row,
                                              const float (&output)[Count], const RowState& state) {
  const int lane = int(thread_in_block() % kWarpSize);
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = lane / kQuadLanes + r * kRowDistance;
    const int query = pack.query(first_row + row);
    const bool exists = query < queries.count && tile_row + row < to.rows;
    const float all = quad_sum(state.sum[r]);
    const float sum = query < queries.used ? all : 0.0f;
    const float ref = query < queries.used ? state.ref[r] : -kInfinity;
    const int64_t at = to.row(partial, tile_row + row);
    store_global_if(exists && lane % kQuadLanes == 0, reinterpret_cast<float2*>(to.sums + at),
                    float2{ref, sum});
    const int lane_column = fragment_lane_column(lane);
    store_floats<false>(to.o + at * to.columns + lane_column, exists ? to.columns - lane_column : 0,
                        output, r, inverse_of(sum));
  }
}

// Stores a warp's rows, the first of them `first_row` of the sequence, if their tile is a split.
template <Kernel C, int Count>
__device__ __forceinline__ bool store_split(const ForwardParams& params, const WorkTileOf<C>& work,
                                            int first_row, float (&output)[Count],
                                            const RowState& rows) {
  if (work.place.partial == TileSplit::kNotSplit) return false;
  store_partial(params.partials, work.place.partial, params.output.pack, work.queries, first_row,
                first_row - work.first_row, output, rows);
  return true;
}

// The splits of a CTA. Sequences: the warp's view of them (sequence_window.cuh). Combine: who
// combines them (kernel_combine.cuh, stream_k_tiles.cuh). IsDecoding: the launch is as
// SplitKvSchedule::for_decoding() says, and its tiles may be whole unless the last CTA combines.
template <Kernel C, class Sequences, class Combine, bool IsDecoding>
class TileSplits {
  using Schedule = typename Sequences::Schedule;

 public:
  struct Smem {
    SequenceSmem sequences;
    [[no_unique_address]] typename Combine::Smem combine;
  };

  __device__ __forceinline__ TileSplits(const ForwardParams& params, Smem& smem)
      : params_(params),
        combine_(params, smem.combine),
        splits_(splits_of(params, smem.sequences)) {}

  __device__ __forceinline__ void open() const { combine_.open(); }
  __device__ __forceinline__ bool done() const { return splits_.done(); }

  // As much of the next split's work tile as says where its keys lie. False: there is no work in
  // it.
  __device__ __forceinline__ bool next(WorkTileOf<C>& work) {
    SequenceTiles s;
    TileSplit tile_split;
    const bool exists = splits_.next(s, tile_split);
    if (exists) {
      s.queries.pack = tile_split.pack;
      work.num_blocks = tile_split.blocks.count;
      work.first_row = tile_split.m_block * C.shape.block_m;
      work.queries = s.queries;
      work.keys = s.keys;
      work.first_key = tile_split.blocks.first * C.shape.block_n;
      work.place.partial = tile_split.partial;
      work.place.set_sequence(s.number, params_.e4m3.sequences);
      if constexpr (C.combine() == CombineKind::kOpener) {
        work.place.later_splits = opener_combines(params_) ? splits_.later_splits(tile_split) : 0;
      }
    }
    if (Combine::kTakesWholeTiles || (exists && tile_split.partial != TileSplit::kNotSplit)) {
      combine_.add(splits_, tile_split, s.queries);
    }
    return exists;
  }

  __device__ __forceinline__ void close(Smem& smem) const { combine_.close(smem.combine); }

 private:
  // With what the compiler may know of the schedule.
  static __device__ __forceinline__ SplitIterator<Sequences, Schedule> splits_of(
      const ForwardParams& params, SequenceSmem& sequences) {
    Schedule schedule{IsDecoding ? params.schedule.for_decoding(Combine::kTakesWholeTiles)
                                 : params.schedule};
    if constexpr (Schedule::kMayPair) schedule.pair_blocks = params.pair_blocks;
    schedule.block_n = C.shape.block_n;
    schedule.sequences.block_m = C.shape.block_m;
    return {schedule, Sequences(schedule, sequences.entries), Combine::range(params),
            int(gridDim.x)};
  }

  const ForwardParams& params_;
  Combine combine_;
  SplitIterator<Sequences, Schedule> splits_;
};

}  // namespace fa3::hopper
