// SPDX-License-Identifier: Apache-2.0
// The score hook of e4m3 products, how it gets the scales of a block, and what V's encoding leaves
// to the epilogue. Next: score_hook.cuh.
#pragma once

#include "engine/cuda/softmax/epilogue.cuh"
#include "engine/cuda/softmax/score_e4m3.cuh"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward/consumer/score/score_hook.cuh"
#include "engine/hopper/forward/smem_plan.cuh"
#include "engine/hopper/ptx/smem.cuh"

namespace fa3::hopper {

// V's scale, and the means of V's channels, as often as the row's sum of P says.
struct DescaledValues {
  float scale;
  const float* mean;  // null: none
  int columns;

  template <int Count>
  __device__ __forceinline__ void restore(float (&output)[Count],
                                          const float (&sum)[kRowsPerThread]) const {
#pragma unroll
    for (float& x : output) x *= scale;
    if (mean == nullptr) return;
    const int lane_column = fragment_lane_column(int(thread_in_block()));
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const int column = fragment_column(i) + lane_column;
      if (column < columns) output[i] += mean[column] * sum[fragment_row_index(i)];
    }
  }

  // The same, and normalises rows: what is left is to multiply them by `factor`, which is the
  // inverse of the row's sum of P before. A row without P has an O of 0, whatever the scale.
  template <int Count>
  __device__ __forceinline__ void restore_normalised(float (&output)[Count],
                                                     float (&factor)[kRowsPerThread]) const {
    constexpr float kTiny = 0x1p-60f;  // its product with an inverse might be no normal number
    if (scale < kTiny) {
#pragma unroll
      for (float& x : output) x *= scale;
    } else {
#pragma unroll
      for (float& x : factor) x = x < cuda::inverse_of(0.0f) ? x * scale : 0.0f;
    }
    if (mean == nullptr) return;
    const int lane_column = fragment_lane_column(int(thread_in_block()));
    // Columns come in eights, and others than the tensor's are not written, whatever they are.
    // Measured: without conditions 128 columns gain 5 to 15%, and 256 lose 1 to 3%.
    constexpr bool kAlways = Count <= 64;
#pragma unroll
    for (int i = 0; i < Count; i += 4) {  // two neighbours of each of the thread's rows
      const bool exists = fragment_column(i) + (kAlways ? 0 : lane_column) < columns;
      const float* const at = mean + lane_column + (exists || !kAlways ? fragment_column(i) : 0);
      const float first = load_global_or(kAlways || exists, at, 0.0f);
      const float second = load_global_or(kAlways || exists, at + 1, 0.0f);
      output[i] = fmaf(output[i], factor[0], first);
      output[i + 1] = fmaf(output[i + 1], factor[0], second);
      output[i + 2] = fmaf(output[i + 2], factor[1], first);
      output[i + 3] = fmaf(output[i + 3], factor[1], second);
    }
    factor[0] = factor[1] = 1.0f;
  }
};

template <Kernel C>
requires(C.e4m3()) struct ScoreHook<C> {
  static constexpr int kGroups = consumer_tuning(C).scale_groups;
  static constexpr bool kLeanSums = consumer_tuning(C).lean_sums;
  using Type = std::conditional_t<C.capped(), CappedDescaledScore<kGroups>,
                                  DescaledScore<kGroups, kLeanSums>>;

  static __device__ __forceinline__ Type make(const ForwardParams& params) {
    if constexpr (C.capped()) {
      return {{}, params.soft_cap};
    } else {
      return {};
    }
  }

  // Takes the scales of a block of keys, which lie at the address `scales`.
  static __device__ __forceinline__ void read_scales(Type& score, float query, uint32_t scales) {
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const uint32_t at = scales + group * uint32_t{sizeof(KeyScales)};
      float read[kLeanSums ? 4 : 2];  // key, boost, unboost
      if constexpr (kLeanSums) {
        ptx::ld_shared_f32x4(at, read);
        score.unboost[group] = read[2];
      } else {
        ptx::ld_shared_f32x2(at, read);
      }
      // Not zero: masked scores are -inf.
      score.factor[group] = fmaxf(query * read[0], 0x1p-126f);
      score.boost[group] = read[1];
    }
  }

  // What a tile's values are multiplied by, and what is added to them.
  static __device__ __forceinline__ DescaledValues values(const ForwardParams& params,
                                                          const WorkTileOf<C>& work,
                                                          const TileScales& scales) {
    const ChannelMeans<const float>& mean = params.e4m3.value_mean;
    const int kv_head = work.queries.pack / params.packs_per_kv_head;
    return {scales.value, mean.data ? mean.at(sequence_of<C>(work), kv_head) : nullptr,
            params.output.o.columns};
  }
};

}  // namespace fa3::hopper
