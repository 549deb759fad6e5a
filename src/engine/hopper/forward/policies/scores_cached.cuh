// SPDX-License-Identifier: Apache-2.0
// Scores over a quantized cache, whose scales come with a tile: those of keys, and of bf16 queries
// that were rescaled to fp16 (fp8/rescale_queries.cuh).
#pragma once

#include "engine/cuda/softmax/score_quantized_keys.cuh"
#include "engine/hopper/forward/policies/scores.cuh"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

template <Kernel C>
class QueryRescaler;

template <Kernel C>
struct CachedHook {
  using Score = std::conditional_t<C.capped(), CappedScoreOf<ScaledSoftCap>, ScaledScore>;
  using RowScaled = std::conditional_t<C.capped(), RowScaledCappedScore<C.shape.block_n>,
                                       RowScaledScore<C.shape.block_n>>;
  using Type = std::conditional_t<C.types().rescales_queries(), RowScaled,
                                  ScoreOf16BitP<Score, C.shape.block_n>>;

  static __device__ __forceinline__ Type of(const ForwardParams& params) {
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

template <Kernel C>
requires(C.dequantizes()) struct ScoresOf<C> : PreparedScores<typename CachedHook<C>::Type> {
  __device__ __forceinline__ explicit ScoresOf(const ForwardParams& params)
      : PreparedScores<typename CachedHook<C>::Type>{CachedHook<C>::of(params)} {}

  template <class Consumer, class Work>
  __device__ __forceinline__ void begin_tile(const Consumer& c, const Work& work, uint32_t) {
    if constexpr (!C.types().rescales_queries()) this->set_scale(work.place.key_scale);
    const int rows_left = c.params.output.pack.rows(work.queries.count) - c.first_row_of(work);
    live_rows_ = rows_left <= 0 ? 0 : rows_left <= kRowDistance ? 1 : 2;
  }
  template <class Consumer>
  __device__ __forceinline__ void receive_queries(const Consumer& c) {
    if constexpr (C.types().rescales_queries()) {
      float scales[kRowsPerThread] = {};
      QueryRescaler<C>::fit(c.stages.q_of_warp(), live_rows(), scales);
      this->set_scales(c.work_tile().place.key_scale, scales);
      ptx::fence_proxy_async();  // products read what these threads have stored
      ptx::bar_sync(int(NamedBarrier::kQueries) + c.warpgroup, kWarpgroupSize);
    }
  }
  __device__ __forceinline__ int live_rows() const {
    return short_steps(C) ? live_rows_ : kRowsPerThread;
  }

 private:
  int live_rows_ = 0;
};

}  // namespace fa3::hopper
