// SPDX-License-Identifier: Apache-2.0
// Scores of e4m3 operands: how they get the scales of a block, and what V's encoding leaves to the
// epilogue.
#pragma once

#include "engine/cuda/softmax/epilogue.cuh"
#include "engine/cuda/softmax/score_e4m3.cuh"
#include "engine/hopper/forward/policies/e4m3_smem.cuh"
#include "engine/hopper/forward/policies/scores.cuh"
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

  // restore(), and normalises rows: what is left is to multiply them by `factor`, which is the
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
using DescaledHook = std::conditional_t<C.capped(), CappedDescaledScore<scale_groups(C)>,
                                        DescaledScore<scale_groups(C), lean_sums(C)>>;

template <Kernel C>
requires(C.e4m3()) struct ScoresOf<C> : PreparedScores<DescaledHook<C>> {
  using Hook = DescaledHook<C>;

  __device__ __forceinline__ explicit ScoresOf(const ForwardParams& params)
      : PreparedScores<Hook>{hook_of(params)} {}

  template <class Consumer, class Work>
  __device__ __forceinline__ void begin_tile(Consumer& c, const Work&, uint32_t) {
    take_longer_reference(c.tile);
  }
  // Before K is released: the scales of its keys go with it.
  template <class Consumer>
  __device__ __forceinline__ void read(const Consumer& c, uint32_t k_stage) {
    const float query = c.smem.sum.tiles[c.stages.work_tile()].query[c.warpgroup];
    read_scales(query, key_scales(c.stages.at(), k_stage));
    __syncwarp();  // every lane has read before lane 0 releases the stage
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

 private:
  static __device__ __forceinline__ Hook hook_of(const ForwardParams& params) {
    if constexpr (C.capped()) {
      return {{}, params.soft_cap};
    } else {
      return {};
    }
  }

  // e4m3 leaves less room above the reference: long runs take it from more keys that all rows see.
  // Measured: without this, causal tiles of 16k keys at 64 columns take 1.2 times as long. Where
  // 256 keys are little more than a block, or rows see different keys of the first ones, shorter
  // runs gain too: causal 2k 3 to 4%.
  template <class Tile>
  static __device__ __forceinline__ void take_longer_reference(Tile& tile) {
    constexpr int kLongRunKeys = C.shape.block_n > 128 ? 512 : 2048, kLongMaskedRunKeys = 512,
                  kKeys = 256;
    const auto& blocks = tile.blocks();
    const bool masked = tracks_max(C) && blocks.masked_from < blocks.count;
    const int long_run = masked ? kLongMaskedRunKeys : kLongRunKeys;
    const int from = blocks.masked_from - kKeys / C.shape.block_n;
    if (blocks.count >= long_run / C.shape.block_n && from < blocks.online_from) {
      tile.guard_from(from > 0 ? from : 0);
    }
  }

  // `scales`: the address of those of a block of keys.
  __device__ __forceinline__ void read_scales(float query, uint32_t scales) {
#pragma unroll
    for (int group = 0; group < Hook::kGroups; ++group) {
      const uint32_t at = scales + group * uint32_t{sizeof(KeyScales)};
      constexpr bool kLean = lean_sums(C);
      float read[kLean ? 4 : 2];  // key, boost, unboost
      if constexpr (kLean) {
        ptx::ld_shared_f32x4(at, read);
        this->unboost[group] = read[2];
      } else {
        ptx::ld_shared_f32x2(at, read);
      }
      // Not zero: masked scores are -inf.
      this->factor[group] = fmaxf(query * read[0], 0x1p-126f);
      this->boost[group] = read[1];
    }
  }
};

}  // namespace fa3::hopper
