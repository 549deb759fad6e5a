// SPDX-License-Identifier: Apache-2.0
// The score hook of kernels over a quantized cache, whose scales come with a tile: those of keys,
// and of bf16 queries that were rescaled to fp16. Next: score_hook.cuh.
#pragma once

#include "engine/cuda/softmax/score_quantized_keys.cuh"
#include "engine/hopper/forward/consumer/score/score_hook.cuh"

namespace fa3::hopper {

// The scale comes with a tile, before the rows of the tile before are stored: they need their own.
// A tile that ends all tiles has any scale.
struct TileScaledScore : ScaledScore {
  float scale_before = 1;

  __device__ __forceinline__ void set_scale(float scale) {
    scale_before = scale_log2;
    scale_log2 = scale;
  }
  __device__ __forceinline__ float log2_units(float ref) const {
    return ref == -kInfinity ? ref : in_log2_units(scale_before, ref);
  }
};

// Which tile's scales are there when rows are stored depends on what follows, so rows with factors
// of their own have no step for large references.
template <int Keys>
struct SmallRowScaledScore : RowScaledScore<Keys> {
  __device__ __forceinline__ float row_factor(int row, float) const { return this->scale[row]; }
  __device__ __forceinline__ float comparable(int, int row, float product) const {
    return __fmul_rn(product, this->scale[row]);
  }
  __device__ __forceinline__ float log2_units(int, float ref) const { return ref; }
};

template <ForwardConfig C>
requires(C.dequantizes()) struct ScoreHook<C> {
  using Score = std::conditional_t<C.capped(), CappedScoreOf<ScaledSoftCap>, TileScaledScore>;
  using RowScaled = std::conditional_t<C.capped(), RowScaledCappedScore<C.block_n>,
                                       SmallRowScaledScore<C.block_n>>;
  using Type =
      std::conditional_t<C.types().rescales_queries(), RowScaled, ScoreOf16BitP<Score, C.block_n>>;

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
