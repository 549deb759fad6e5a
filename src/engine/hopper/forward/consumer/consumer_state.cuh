// SPDX-License-Identifier: Apache-2.0
// All that a consumer warpgroup knows, but for its threads' shares of the tile (thread_tile.cuh):
// the parts it is composed of, each under its own name. The functions of the other consumer files
// work on it. Next: consumer_blocks.cuh.
#pragma once

#include "engine/cuda/dropout/dropout.cuh"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward/consumer/consumer_stages.cuh"
#include "engine/hopper/forward/consumer/current_tile.cuh"
#include "engine/hopper/forward/consumer/score/score_hook.cuh"
#include "engine/hopper/forward/consumer/thread_tile.cuh"
#include "engine/hopper/pipeline/ping_pong.cuh"

namespace fa3::hopper {

// What e4m3 products need (promoted_sum.cuh).
template <Kernel C>
class PromotedSum;

// The products of other types need none: their sums are kept whole.
struct NoPromotedSum {
  __device__ __forceinline__ bool promotes_under(int) const { return false; }
  __device__ __forceinline__ bool promotes_behind(int) const { return false; }
};

// Kernels that drop nothing.
struct NoDropout {
  __device__ __forceinline__ explicit NoDropout(const DropoutParams&) {}
};

template <Kernel C>
struct ConsumerState {
  using Score = typename ScoreHook<C>::Type;
  using StepResult = typename Score::Result;

  __device__ __forceinline__ ConsumerState(const ForwardParams& params, SmemPlan<C>& smem,
                                           SmemAddresses<C> at, int warpgroup)
      : params(params),
        smem(smem),
        warpgroup(warpgroup),
        score(ScoreHook<C>::make(params)),
        stages(at, warpgroup),
        ping_pong(warpgroup),
        dropout(params.dropout) {}

  // The current tile's, in shared memory.
  __device__ __forceinline__ WorkTileOf<C>& work_tile() const {
    return smem.work_tiles[stages.work_tile()];
  }
  __device__ __forceinline__ const auto& edge() const {
    if constexpr (consumer_tuning(C).reads_edge_again) {
      return work_tile().mine[warpgroup].edge;
    } else {
      return tile.blocks().edge;
    }
  }
  __device__ __forceinline__ int masked_from() const {
    if constexpr (C.e4m3()) {
      return work_tile().mine[warpgroup].masked_from;
    } else {
      return tile.blocks().masked_from;
    }
  }

  __device__ __forceinline__ unsigned warp() const {
    return (thread_in_block() - kWarpgroupSize) / kWarpSize;
  }
  // The first row of this warp in `work`'s sequence.
  __device__ __forceinline__ int first_row_of(const WorkTileOf<C>& work) const {
    return work.first_row + int(warp()) * kRowsPerWarp;
  }
  __device__ __forceinline__ KeySpan& lines_meet() const { return smem.added_lines.meet[warp()]; }
  // The lines of the rows of this warp, and what they are kept less, of a work tile.
  __device__ __forceinline__ LinesOfRow* added_lines() const {
    return smem.added_lines.rows + warp() * kRowsPerWarp;
  }
  __device__ __forceinline__ float* added_references(uint32_t stage) const {
    return smem.added_lines.references[stage % kAddedReferences] + warp() * kRowsPerWarp;
  }
  __device__ __forceinline__ uint32_t promoted_sum_address() const {
    return stages.at().promoted_sum(warp(), thread_in_block() % kWarpSize);
  }

  const ForwardParams& params;
  SmemPlan<C>& smem;
  const int warpgroup;
  std::conditional_t<C.e4m3() || C.dequantizes(), Score, const Score> score;
  ConsumerStages<C> stages;
  CurrentTile<C> tile;
  std::conditional_t<C.e4m3(), PromotedSum<C>, NoPromotedSum> promoted;
  bool output_starts = false;  // the next P V is the tile's first, or a part's: it assigns O
  const PingPong<C.consumers(), C.shape.ping_pong> ping_pong;
  [[no_unique_address]] std::conditional_t<C.dropout(), QueryRowDropout, NoDropout> dropout;
};

}  // namespace fa3::hopper
