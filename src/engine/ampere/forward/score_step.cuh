// SPDX-License-Identifier: Apache-2.0
// What a warp does with the scores of a block: they become P. Masked blocks and a tile's first take
// the online step; others the guarded one, which leaves the reference alone, and where its guard
// fires P is brought back into range, or computed again if it has overflowed. Next:
// cuda/softmax/softmax.cuh, forward_kernel.cuh.
#pragma once

#include "engine/ampere/forward/tile_work.cuh"
#include "engine/ampere/forward/warp_tile.cuh"
#include "engine/cuda/mask/mask.cuh"
#include "engine/cuda/softmax/score_quantized_keys.cuh"

namespace fa3::ampere {

// Capped scores are in log2 units already, and their scale is 1.
struct Score : ScaledScore {
  bool capped;
  SoftCap cap;

  __device__ __forceinline__ explicit Score(const ForwardParams& params)
      : ScaledScore{params.scale_log2}, capped(params.capped), cap(params.soft_cap) {}

  template <int Count>
  __device__ __forceinline__ void prepare(float (&products)[Count]) const {
    if (capped) CappedScore{cap}.prepare(products);
  }
};

// Of a quantized cache: products have the keys' scale as a factor. Neither zero nor infinite:
// masked scores are -inf, and products may be zero.
struct QuantizedScore : ScaledScore {
  bool capped;
  ScaledSoftCap cap;

  __device__ __forceinline__ QuantizedScore(const ForwardParams& params, float key_scale)
      : ScaledScore{params.capped
                        ? 1.0f
                        : fminf(fmaxf(params.scale_log2 * key_scale, 0x1p-126f), 0x1.fffffep127f)},
        capped(params.capped),
        cap{params.soft_cap} {
    cap.set_scale(key_scale);
  }

  template <int Count>
  __device__ __forceinline__ void prepare(float (&products)[Count]) const {
    if (capped) CappedScoreOf<ScaledSoftCap>{cap}.prepare(products);
  }
};

// After this many fired guards in a tile a warp takes the rest of it by online steps.
inline constexpr int kMostGuardFires = 3;

template <ForwardConfig C>
class ScoreStep {
  using Plain = std::conditional_t<C.quantized, QuantizedScore, Score>;
  using Hook = ScoreOf16BitP<Plain, C.block_n>;
  using Tile = WarpTile<C>;

 public:
  __device__ __forceinline__ ScoreStep(const ForwardParams& params, const TileWork<C>& work,
                                       const WarpBlocks& blocks)
      : score_{score_of(params, work)}, blocks_(blocks), params_(params) {}

  // False: P has overflowed in the registers that held the scores. With their products there once
  // more, the step is to be taken `again`.
  __device__ __forceinline__ bool take(Tile& r, int block, bool again) {
    prepare(r);
    const int first_key = block * C.block_n;
    const bool masked =
        uniform(block >= blocks_.masked_from || blocks_.edge.hides_left(first_key)) != 0;
    const bool may_guard = uniform(!again && block < blocks_.online_from) != 0;
    if (masked) mask(r, first_key);
    if (!masked && may_guard && fires_ < kMostGuardFires) return guarded(r);
    online(r);
    return true;
  }

 private:
  __device__ __forceinline__ static Plain score_of(const ForwardParams& params,
                                                   const TileWork<C>& work) {
    if constexpr (C.quantized) {
      return {params, cache_scale(params.cache_scales.key, work)};
    } else {
      return Plain(params);
    }
  }

  __device__ __forceinline__ void prepare(Tile& r) const {
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) score_.prepare(r.scores[t]);
  }

  __device__ __forceinline__ void mask(Tile& r, int first_key) const {
    const int lane = int(thread_in_block() % kWarpSize);
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) {
      mask_scores(r.scores[t], blocks_.edge, params_.output.pack, t * kWarpSize + lane, first_key);
    }
  }

  __device__ __forceinline__ void online(Tile& r) const {
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) {
      StepResult result;
      online_step(r.scores[t], r.rows[t], score_, result);
      move(r, t, result);
      r.add_sums(t, result);
    }
  }

  // Most often nothing moves: then a vote is all.
  __device__ __forceinline__ static void move(Tile& r, int t, const StepResult& result) {
    if (!__any_sync(0xffffffff, result.rescale[0] != 1.0f || result.rescale[1] != 1.0f)) return;
    r.rescale(t, result);
  }

  __device__ __forceinline__ bool guarded(Tile& r) {
    StepResult results[Tile::kRowTiles];
    bool fires = false, lost = false;
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) {
      guarded_step<0>(r.scores[t], r.rows[t], score_, results[t], [] {});
      fires |= !within(results[t], Hook::kBound);
      lost |= !within(results[t], kLargestRescalable);
    }
    if (__any_sync(0xffffffff, fires)) {
      ++fires_;
      if (__any_sync(0xffffffff, lost)) return false;
#pragma unroll
      for (int t = 0; t < Tile::kRowTiles; ++t) {
        rescale_after_guard<Hook>(r.scores[t], r.rows[t], results[t]);
        r.rescale(t, results[t]);
      }
    }
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) r.add_sums(t, results[t]);
    return true;
  }

  // NaN is not.
  __device__ __forceinline__ static bool within(const StepResult& result, float bound) {
    return result.block_sum[0] <= bound && result.block_sum[1] <= bound;
  }

  const Hook score_;
  const WarpBlocks& blocks_;
  const ForwardParams& params_;
  int fires_ = 0;
};

}  // namespace fa3::ampere
