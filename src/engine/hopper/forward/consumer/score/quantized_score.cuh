// SPDX-License-Identifier: Apache-2.0
// The score hook of kernels over a quantized cache, whose scales come with a tile: those of keys,
// and of bf16 queries that were rescaled to fp16. Next: score_hook.cuh.
#pragma once

#include "engine/cuda/softmax/score_quantized_keys.cuh"
#include "engine/hopper/forward/consumer/score/score_hook.cuh"

namespace fa3::hopper {

template <Kernel C>
requires(C.dequantizes()) struct ScoreHook<C> {
  using Score = std::conditional_t<C.capped(), CappedScoreOf<ScaledSoftCap>, ScaledScore>;
  using RowScaled = std::conditional_t<C.capped(), RowScaledCappedScore<C.shape.block_n>,
                                       RowScaledScore<C.shape.block_n>>;
  using Type = std::conditional_t<C.types().rescales_queries(), RowScaled,
                                  ScoreOf16BitP<Score, C.shape.block_n>>;

  static __device__ __forceinline__ Type make(const ForwardParams& params) {
    if constexpr (C.types().rescales_queries() && C.capped()) {
      return {{{{params.soft_cap}}}};
    } else if constexpr (C.types().rescales_queries()) {
      return {};
    } else if constexpr (C.capped()) {
      return {{params.soft_cap}};
    } else {
      return {{params.scale_log2}};
    }
  }
};

}  // namespace fa3::hopper
