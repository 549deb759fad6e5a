// SPDX-License-Identifier: Apache-2.0
// Soft-capped scores.
#pragma once

#include "engine/cuda/softmax/softcap_score.cuh"
#include "engine/hopper/forward/policies/scores.cuh"

namespace fa3::hopper {

template <Kernel C>
using CappedHook = ScoreOf16BitP<CappedScore, C.shape.block_n, headroom_log2(C)>;

template <Kernel C>
requires(C.capped() && !C.e4m3() && !C.dequantizes()) struct ScoresOf<C>
    : PreparedScores<CappedHook<C>> {
  __device__ __forceinline__ explicit ScoresOf(const ForwardParams& params)
      : PreparedScores<CappedHook<C>>{{{params.soft_cap}}} {}
};

}  // namespace fa3::hopper
