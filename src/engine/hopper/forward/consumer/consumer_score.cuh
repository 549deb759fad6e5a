// SPDX-License-Identifier: Apache-2.0
// The score hook (cuda/score.cuh) of a kernel's softmax: which one, what it is made from, and how
// it gets the scales of e4m3 blocks. Next: consumer_state.cuh.
#pragma once

#include "engine/cuda/score.cuh"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward/smem_plan.cuh"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/ptx/smem.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
struct ScoreHook {
  using Capped16 = std::conditional_t<C.dequantizes(), CappedScoreOf<ScaledSoftCap>, CappedScore>;
  using Score16 = std::conditional_t<C.capped(), Capped16, ScaledScore>;
  using Score8 =
      std::conditional_t<C.capped(), CappedDescaledScore<consumer_tuning(C).scale_groups>,
                         DescaledScore<consumer_tuning(C).scale_groups>>;
  using RowScaled =
      std::conditional_t<C.capped(), RowScaledCappedScore<C.block_n>, RowScaledScore<C.block_n>>;
  using Dequantized = std::conditional_t<C.types().rescales_queries(), RowScaled,
                                         ScoreOf16BitP<Score16, C.block_n>>;
  using Type = std::conditional_t<C.e4m3, Score8, Dequantized>;

  static __device__ __forceinline__ Type make(const ForwardParams& params) {
    if constexpr (C.e4m3 && C.capped()) {
      return {{}, params.soft_cap};
    } else if constexpr (C.e4m3) {
      return {};
    } else if constexpr (C.types().rescales_queries() && C.capped()) {
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

// Takes the scales of a block of e4m3 keys, which lie at the address `scales`.
template <int Groups>
__device__ __forceinline__ void read_scales(DescaledScore<Groups>& score, float query,
                                            uint32_t scales) {
#pragma unroll
  for (int group = 0; group < Groups; ++group) {
    float key_and_boost[2];
    ptx::ld_shared_f32x2(scales + group * uint32_t{sizeof(KeyScales)}, key_and_boost);
    // Not zero: masked scores are -inf.
    score.factor[group] = fmaxf(query * key_and_boost[0], 0x1p-126f);
    score.boost[group] = key_and_boost[1];
  }
}

}  // namespace fa3::hopper
