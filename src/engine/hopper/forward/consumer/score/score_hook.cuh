// SPDX-License-Identifier: Apache-2.0
// The score hook (cuda/softmax/score.cuh) of a kernel's softmax: which one, and what it is made
// from. Other operands have theirs in e4m3_score.cuh and quantized_score.cuh.
// Next: consumer_state.cuh.
#pragma once

#include "engine/cuda/softmax/score.cuh"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward_params.h"
#ifdef FA3_SCORE_FUNCTION
#include "engine/hopper/forward/consumer/score/lines_score.cuh"
#endif

namespace fa3::hopper {

#ifdef FA3_SCORE_FUNCTION
template <Kernel C>
struct ScoreHook {
  using Added = std::conditional_t<kAddsLines, ScoreWithLines, AddedScore>;
  using Type =
      std::conditional_t<kAddsToScore,
                         ScoreOf16BitP<Added, C.shape.block_n, consumer_tuning(C).headroom_log2>,
                         ScoreOf16BitP<FunctionScore, C.shape.block_n>>;

  static __device__ __forceinline__ Type make(const ForwardParams& params) {
    return Type{std::conditional_t<kAddsToScore, Added, FunctionScore>(params)};
  }
};
#else
template <Kernel C>
struct ScoreHook {
  static_assert(!C.e4m3() && !C.dequantizes(), "the source of this kernel includes no score hook");
  using Score = std::conditional_t<C.capped(), CappedScore, ScaledScore>;
  using Type = ScoreOf16BitP<Score, C.shape.block_n, consumer_tuning(C).headroom_log2>;

  static __device__ __forceinline__ Type make(const ForwardParams& params) {
    if constexpr (C.capped()) {
      return {{params.soft_cap}};
    } else {
      return {{params.scale_log2}};
    }
  }
};
#endif

}  // namespace fa3::hopper
