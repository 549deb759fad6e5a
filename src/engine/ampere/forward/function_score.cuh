// SPDX-License-Identifier: Apache-2.0
// The score hook of kernels that are compiled at run time, for a score function of the caller's
// (cuda/softmax/score_function.cuh), which wants to know where each score is. Next: score_step.cuh.
#pragma once

#include "engine/ampere/forward/tile_work.cuh"
#include "engine/cuda/softmax/score.cuh"
#include "engine/cuda/softmax/score_function.cuh"

namespace fa3::ampere {

// Behind prepare() scores are natural ones: the function's.
template <ForwardConfig C>
struct FunctionScore : ScaledScore {
  const ForwardParams& params;
  const TileWork<C>& work;
  float scale;  // from products to scores

  __device__ __forceinline__ FunctionScore(const ForwardParams& p, const TileWork<C>& w)
      : ScaledScore{kLog2E}, params(p), work(w), scale(p.scale_log2) {
    if constexpr (C.quantized) scale *= cache_scale(p.cache_scales.key, w);
  }

  // For the row tile of this number of the warp's, 16 rows, and the keys of a block.
  template <int Count>
  __device__ __forceinline__ void prepare(float (&products)[Count], int row_tile, int block) const {
    const int lane = int(thread_in_block() % kWarpSize), warp = int(thread_in_block()) / kWarpSize;
    const int first_row = work.first_row(warp) + fragment_row(row_tile * kWarpSize + lane);
    const int first_key =
        work.first_key + work.place_of(block) * C.block_n + fragment_lane_column(lane);
    int head[kRowsPerThread], query[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int row = first_row + r * kRowDistance;
      head[r] = params.output.pack.head(work.tile.pack, row);
      query[r] = params.output.pack.query(row);
    }
    const auto score_of = [&](const ScoreFunction& f, int i) {
      const int r = fragment_row_index(i);
      return f.of(products[i] * scale, work.tile.sequence, head[r], query[r],
                  first_key + fragment_column(i));
    };
    ScoreFunction{params.captures}.template choose<Count>(score_of, [&](const ScoreFunction& f) {
#pragma unroll
      for (int i = 0; i < Count; ++i) products[i] = score_of(f, i);
    });
  }
};

}  // namespace fa3::ampere
