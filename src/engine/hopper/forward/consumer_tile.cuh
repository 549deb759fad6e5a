// SPDX-License-Identifier: Apache-2.0
// What a consumer warpgroup knows of its current tile, but for the threads' shares of it
// (thread_tile.cuh). Next: consumer_softmax.cuh.
#pragma once

#include "engine/hopper/forward/consumer_score.cuh"
#include "engine/hopper/forward/consumer_stages.cuh"
#include "engine/hopper/forward/promoted_sum.cuh"
#include "engine/hopper/forward/thread_tile.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
class ConsumerTile {
 protected:
  using Tile = ThreadTile<C>;
  using Score = typename ScoreHook<C>::Type;
  using StepResult = typename Score::Result;

  struct NoLiveRows {};

  static constexpr int kScores = C.block_n / 2;  // of a thread
  // mine_.online_from of a tile whose rows are peaked; no rule for references gives it.
  static constexpr int kTracksMax = -1;

  __device__ __forceinline__ ConsumerTile(const ForwardParams& params, SmemPlan<C>& smem,
                                          SmemAddresses<C> at, int warpgroup)
      : params_(params),
        smem_(smem),
        warpgroup_(warpgroup),
        score_(ScoreHook<C>::make(params)),
        stages_(at, warpgroup) {}

  __device__ __forceinline__ const auto& edge() const {
    if constexpr (C.reads_edge_again()) {
      return smem_.work_tiles[stages_.item()].mine[warpgroup_].edge;
    } else {
      return mine_.edge;
    }
  }
  __device__ __forceinline__ int masked_from() const {
    if constexpr (C.e4m3) {
      return smem_.work_tiles[stages_.item()].mine[warpgroup_].masked_from;
    } else {
      return mine_.masked_from;
    }
  }

  // Of the current block, counted like the tile's keys.
  __device__ __forceinline__ int block_begin() const { return blocks_left_ * C.block_n; }

  // Loops of steps stop behind this block or before it, where a part of O ends; at the latest
  // behind the tile's last. A part that ends there too is added up where the tile is finished.
  __device__ __forceinline__ void stop_at(int look) {
    int stop = look > 0 ? look : 0;
    if constexpr (!C.promotes_under_scores()) {
      const int end = promoted_.next_end();
      if (end > stop) stop = end;
    }
    stop_ = stop;
  }

  // Of a thread's rows of the tile, those that are queries'.
  __device__ __forceinline__ int live_rows() const {
    if constexpr (C.short_steps()) return live_rows_;
    return kRowsPerThread;
  }

  // This warp's, of a tile.
  __device__ __forceinline__ int first_row_of(const WorkTileOf<C>& item) const {
    return item.first_row + int(consumer_warp()) * kRowsPerWarp;
  }

  __device__ __forceinline__ unsigned consumer_warp() const {
    return (thread_in_block() - kWarpgroupSize) / kWarpSize;
  }

  __device__ __forceinline__ bool is_lane_0() const { return threadIdx.x % kWarpSize == 0; }

  __device__ __forceinline__ uint32_t promoted_sum() const {
    return stages_.at().promoted_sum(consumer_warp(), thread_in_block() % kWarpSize);
  }

  const ForwardParams& params_;
  SmemPlan<C>& smem_;
  const int warpgroup_;
  std::conditional_t<C.e4m3 || C.dequantizes(), Score, const Score> score_;

  ConsumerStages<C> stages_;

  typename WorkTileOf<C>::Blocks mine_{};  // of the current tile, this warpgroup's
  int blocks_left_ = 0;  // of the current tile after the current block, whose number that is; its
                         // complement (< 0): the current block's scores are lost
  int stop_ = 0;         // where rows may be max-tracking: behind this block loops of steps stop
  std::conditional_t<C.e4m3, PromotedSum<C>, NoPromotedSum> promoted_;
  bool output_starts_ = false;  // the next product of weights is the tile's first, or a part's
  // Of the two rows that each of the warp's threads has of the current tile, how many are queries'.
  std::conditional_t<C.short_steps(), int, NoLiveRows> live_rows_{};
};

}  // namespace fa3::hopper
