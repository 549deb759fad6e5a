// SPDX-License-Identifier: Apache-2.0
// Who combines the splits of a tile once their rows are stored. Single sequence (RowCombine): the
// warp that has stored a row counts it, and the warp that counts its last split combines it; no
// warp waits for another. Stream-K ranges (RangeCombine): the CTA counts its share of the rows at
// the end of its range. Read first: combine_last.cuh.
//
// begin() is called when an item begins, end() when the CTA has done all its items, prepare() in
// between: for ranges before an item's keys are read, for a single sequence behind them. Measured:
// the other way round ranges are 1 to 5% slower, a single sequence without splits 2%.
#pragma once

#include "engine/hopper/combine/combine_last.cuh"
#include "engine/hopper/ptx/lanes.cuh"

namespace fa3::hopper {

template <Kernel C>
class RowCombine {
 public:
  struct Smem {};

  // The warp's rows are those that ClusterReduce::all() gives it: number n belongs to lane n.
  __device__ __forceinline__ RowCombine(const ForwardParams& params, Smem&, int warp,
                                        RowShare share)
      : params_(params),
        lane_row_(share.first + (warp + ptx::lane() * C.consumer_warps()) * share.step) {}

  __device__ __forceinline__ void begin(const CombineTile& tile) {
    if (has_row()) found_ = count_of_row(tile).look();
  }
  __device__ __forceinline__ void prepare(const CombineTile& tile) const {
    if (has_row()) count_of_row(tile).prepare(found_);
  }
  // The warp has stored its rows.
  __device__ __forceinline__ void end(const CombineTile& tile) const {
    __syncwarp();
    const bool is_last = has_row() && count_of_row(tile).add(tile.num_splits);
    unsigned last = __ballot_sync(0xffffffff, is_last);
    __syncwarp();
#pragma unroll 1
    for (; last != 0; last &= last - 1) {
      const int row = __shfl_sync(0xffffffff, lane_row_, __ffs(last) - 1);
      combine_rows<C, 1, kFewSplits>(params_, tile, row, 0);
    }
  }

 private:
  __device__ __forceinline__ bool has_row() const {
    return lane_row_ < params_.partials.rows;
  }
  __device__ __forceinline__ SplitCounter count_of_row(const CombineTile& tile) const {
    return {params_.counts, tile.first_partial * C.shape.block_m + lane_row_};
  }

  const ForwardParams& params_;
  const int lane_row_;  // the lane's, if there is one
  uint64_t found_ = 0;
};

template <Kernel C>
class RangeCombine {
 public:
  using Smem = CombineTiles;

  __device__ __forceinline__ RangeCombine(const ForwardParams& params, Smem& smem, int,
                                          RowShare share)
      : params_(params), smem_(smem), share_(share) {}

  __device__ __forceinline__ void begin(const CombineTile& tile) {
    if (threadIdx.x == 0) {
      smem_.tiles[num_combines_] = tile;
      found_ = count(tile).look();
    }
    ++num_combines_;
  }
  __device__ __forceinline__ void prepare() const {
    if (threadIdx.x == 0) count(smem_.tiles[num_combines_ - 1]).prepare(found_);
  }
  __device__ __forceinline__ void end() const {
    if (num_combines_ == 0) return;
    if (threadIdx.x == 0) smem_.count = num_combines_;
    __syncthreads();
    combine_tiles_of_cta<C>(params_, smem_, int(threadIdx.x), share_);
  }

 private:
  __device__ __forceinline__ SplitCounter count(const CombineTile& tile) const {
    return {params_.counts, count_of(tile, share_)};
  }

  const ForwardParams& params_;
  Smem& smem_;
  const RowShare share_;
  int num_combines_ = 0;
  uint64_t found_ = 0;  // by thread 0, of the last split tile
};

}  // namespace fa3::hopper
