// SPDX-License-Identifier: Apache-2.0
// The score hook of kernels that are compiled at run time, for a score function of the caller's
// (cuda/softmax/score_function.cuh). It wants to know where each score is. Next:
// consumer_score.cuh.
#pragma once

#include "engine/cuda/softmax/score_function.cuh"
#include "engine/cuda/softmax/softmax.cuh"
#include "engine/cuda/tile/rows.h"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/scheduler/work_tile.cuh"

namespace fa3::hopper {

// Where a thread's scores of a block are: its two rows, and its first key.
struct ScorePlace {
  int sequence;
  int head[kRowsPerThread];
  int query[kRowsPerThread];
  int key;
};

template <class Work>
__device__ __forceinline__ ScorePlace place_of_scores(const ForwardParams& params, const Work& work,
                                                      int first_row, int first_key) {
  const int lane = int(thread_in_block() % kWarpSize);
  ScorePlace place;
  place.sequence = work.place.sequence_or(work.keys.batch);
  int listed_key = work.first_key + first_key;
  if constexpr (requires { work.place.blocks; }) {  // of a block mask: blocks are numbers in a list
    listed_key = work.place.blocks[first_key / kMaskBlock].block * kMaskBlock;
  }
  place.key = listed_key + fragment_lane_column(lane);
#pragma unroll
  for (int r = 0; r < kRowsPerThread; ++r) {
    const int row = first_row + lane / kQuadLanes + r * kRowDistance;
    place.head[r] = params.output.pack.head(work.queries.pack, row);
    place.query[r] = params.output.pack.query(row);
  }
  return place;
}

// Scores are natural ones behind prepare(): the function's.
struct FunctionScore {
  ScoreFunction function;
  float scale;  // softmax scale

  template <int Count, class Work>
  __device__ __forceinline__ void prepare(float (&products)[Count], const ForwardParams& params,
                                          const Work& work, int first_row, int first_key) const {
    const ScorePlace place = place_of_scores(params, work, first_row, first_key);
    const auto score_of = [&](const ScoreFunction& f, int i) {
      const int r = fragment_row_index(i);
      return f.of(products[i] * scale, place.sequence, place.head[r], place.query[r],
                  place.key + fragment_column(i));
    };
    function.choose<Count>(score_of, [&](const ScoreFunction& f) {
#pragma unroll
      for (int i = 0; i < Count; ++i) products[i] = score_of(f, i);
    });
  }
  __device__ __forceinline__ float exponent(float score, float ref) const {
    return __fmaf_rn(score, kLog2E, -ref);
  }
  __device__ __forceinline__ float reference(float score) const {
    return score * kLog2E;
  }
};

}  // namespace fa3::hopper
