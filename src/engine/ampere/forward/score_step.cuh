// SPDX-License-Identifier: Apache-2.0
// What a warp does with the scores of a block: they become P. Masked blocks and a tile's first take
// the online step; others the guarded one, which leaves the reference alone, and where its guard
// fires P is brought back into range, or computed again if it has overflowed. Next:
// cuda/softmax/softmax.cuh, forward_kernel.cuh.
#pragma once

#include "engine/ampere/forward/tile_work.cuh"
#include "engine/ampere/forward/warp_tile.cuh"
#include "engine/cuda/mask/bit_mask.cuh"
#include "engine/cuda/mask/mask.cuh"
#include "engine/cuda/softmax/score_captures.h"
#include "engine/cuda/softmax/score_quantized_keys.cuh"
#ifdef FA3_SCORE_FUNCTION
#include "engine/ampere/forward/function_score.cuh"
#endif

namespace fa3::ampere {

// Capped scores are in log2 units already, and their scale is 1.
struct Score : ScaledScore {
  bool capped;
  SoftCap cap;

  __device__ __forceinline__ explicit Score(const ForwardParams& params)
      : ScaledScore{params.scale_log2}, capped(params.capped), cap(params.soft_cap) {}

  template <int Count>
  __device__ __forceinline__ void prepare(float (&products)[Count], int, int) const {
    if (capped) CappedScore{cap}.prepare(products);
  }
};

// In a quantized cache products have the keys' scale as a factor. Neither zero nor infinite:
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
  __device__ __forceinline__ void prepare(float (&products)[Count], int, int) const {
    if (capped) CappedScoreOf<ScaledSoftCap>{cap}.prepare(products);
  }
};

#ifdef FA3_SCORE_FUNCTION
template <ForwardConfig C>
using PlainScore = FunctionScore<C>;
#else
template <ForwardConfig C>
using PlainScore = std::conditional_t<C.quantized, QuantizedScore, Score>;
#endif

// After this number of fired guards in a tile, more than every other block's, a warp takes the rest
// of it by online steps: a fired guard pays for itself if another block passes before the next.
inline constexpr int kFewGuardFires = 2;

template <ForwardConfig C>
class ScoreStep {
  using Plain = PlainScore<C>;
  using Hook = ScoreOf16BitP<Plain, C.block_n, C.headroom_log2()>;
  using Tile = WarpTile<C>;

 public:
  __device__ __forceinline__ ScoreStep(const ForwardParams& params, const TileWork<C>& work,
                                       WarpWork& mine)
      : score_{score_of(params, work)}, mine_(mine), params_(params), work_(work) {}

  // False: P has overflowed in the registers that held the scores. With their products there once
  // more, the step is to be taken `again`.
  __device__ __forceinline__ bool take(Tile& r, int block, bool again) {
    if constexpr (C.outputs.max_logit) see_products(r, block);
    prepare(r, block);
    int place = block;
    if constexpr (C.block_mask) place = work_.place_of(block);
    const int first_key = place * C.block_n;
    bool masked =
        uniform(place >= blocks().masked_from || blocks().edge.hides_left(first_key)) != 0;
    // A function may hide all keys that a row has seen: then it has no reference yet.
    const bool may_guard =
        !kHasScoreFunction && uniform(!again && block < blocks().online_from) != 0;
    if (masked) mask(r, first_key);
    if constexpr (C.block_mask) masked = hides_by_bits(r, block, first_key) || masked;
    if (!masked && may_guard) return guarded(r, block);
    online(r);
    if (!kHasScoreFunction && has_large_references(r)) {  // guarded steps know none
      never_guard();
    } else if constexpr (C.block_mask) {
      if (!masked) may_guard_below(block);
    }
    return true;
  }

 private:
  __device__ __forceinline__ static Plain score_of(const ForwardParams& params,
                                                   const TileWork<C>& work) {
    if constexpr (kHasScoreFunction) {
      return {params, work};
    } else if constexpr (C.quantized) {
      return {params, cache_scale(params.cache_scales.key, work)};
    } else {
      return Plain(params);
    }
  }

  // A softcap makes finite scores of what is hidden here, so it is hidden again behind that.
  __device__ __forceinline__ void see_products(Tile& r, int block) const {
    int place = block;
    if constexpr (C.block_mask) place = work_.place_of(block);
    const int first_key = place * C.block_n;
    if (uniform(place >= blocks().masked_from || blocks().edge.hides_left(first_key)) != 0) {
      mask(r, first_key);
    }
    if constexpr (C.block_mask) hides_by_bits(r, block, first_key);
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) r.see_products(t, r.scores[t]);
  }

  __device__ __forceinline__ void prepare(Tile& r, int block) const {
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) score_.prepare(r.scores[t], t, block);
  }

  // Causal calls and the last keys take the short way.
  __device__ __forceinline__ void mask(Tile& r, int first_key) const {
    const KeyWindow& edge = blocks().edge;
    const bool by_right = edge.chunk == MaskRuleOf<int>::kNoChunks && !edge.hides_left(first_key);
    if (by_right) {
      mask_by(edge.right, r, first_key);
    } else {
      mask_by(edge, r, first_key);
    }
  }
  template <class Edge>
  __device__ __forceinline__ void mask_by(const Edge& edge, Tile& r, int first_key) const {
    const int lane = int(thread_in_block() % kWarpSize);
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) {
      mask_scores(r.scores[t], edge, params_.output.pack, t * kWarpSize + lane, first_key);
    }
  }

  // What a block mask hides of the block; whether it is seen in part.
  __device__ __forceinline__ bool hides_by_bits(Tile& r, int block, int first_key) const {
    const uint32_t* const bits = work_.visits.bits(block);
    if (bits == nullptr) return false;
    const int lane = int(thread_in_block() % kWarpSize), warp = int(thread_in_block()) / kWarpSize;
    const int key = (work_.first_key + first_key) % kMaskBlock;
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) {
      RowBitsOf<C.block_n / 32> mine;
#pragma unroll
      for (int i = 0; i < kRowsPerThread; ++i) {
        const int row = work_.first_row(warp) + fragment_row(t * kWarpSize + lane);
        const int query = params_.output.pack.query(row + i * kRowDistance) % kMaskBlock;
        const uint32_t* const words = bits + query * kMaskRowWords + key / 32;
#pragma unroll
        for (int w = 0; w < C.block_n / 32; ++w) mine.words[i][w] = __ldg(words + w);
      }
      mine.hide(r.scores[t], lane);
    }
    return true;
  }

  // All rows have seen the keys of `block`: they have a reference. In shared memory, as fires.
  __device__ __forceinline__ void may_guard_below(int block) {
    const bool first = mine_.blocks.online_from == 0 && mine_.fired_guards == 0;
    if (first && thread_in_block() % kWarpSize == 0) mine_.blocks.online_from = block;
  }

  // As if enough guards had fired, so that may_guard_below() finds no first time.
  __device__ __forceinline__ void never_guard() {
    if (thread_in_block() % kWarpSize != 0) return;
    mine_.fired_guards = kFewGuardFires;
    mine_.blocks.online_from = 0;
  }

  __device__ __forceinline__ static bool has_large_references(const Tile& r) {
    bool large = false;
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) {
      large |= is_large(r.rows[t].ref[0]) || is_large(r.rows[t].ref[1]);
    }
    return __any_sync(0xffffffff, large);
  }

  __device__ __forceinline__ void online(Tile& r) const {
    StepResult results[Tile::kRowTiles];
    bool moves = false;
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) {
      online_step(r.scores[t], r.rows[t], score_, results[t]);
      moves |= results[t].rescale[0] != 1.0f || results[t].rescale[1] != 1.0f;
    }
    // Most often nothing moves: then a vote is all.
    if (__any_sync(0xffffffff, moves)) {
#pragma unroll
      for (int t = 0; t < Tile::kRowTiles; ++t) r.rescale(t, results[t]);
    }
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) r.add_sums(t, results[t]);
  }

  __device__ __forceinline__ bool guarded(Tile& r, int block) {
    StepResult results[Tile::kRowTiles];
    bool fires = false, lost = false;
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) {
      guarded_step<0>(r.scores[t], r.rows[t], score_, results[t], [] {});
      fires |= !within(results[t], Hook::kBound);
      lost |= !within(results[t], kLargestRescalable * Hook::kTop);
    }
    if (__any_sync(0xffffffff, fires)) {
      count_fire(block);
      if (__any_sync(0xffffffff, lost)) return false;
#pragma unroll
      for (int t = 0; t < Tile::kRowTiles; ++t) {
        bring_to_top(r.scores[t], r.rows[t], results[t]);
        r.rescale(t, results[t]);
      }
    }
#pragma unroll
    for (int t = 0; t < Tile::kRowTiles; ++t) r.add_sums(t, results[t]);
    return true;
  }

  // The largest P of each row that has outgrown kTop becomes kTop: all of them, which saves the
  // others a fired guard of their own.
  template <int Count>
  __device__ __forceinline__ static void bring_to_top(float (&p)[Count], RowState& rows,
                                                      StepResult& result) {
    float max[kRowsPerThread];
    row_max(p, max);
#pragma unroll
    for (int row = 0; row < kRowsPerThread; ++row) {
      const bool grown = max[row] > Hook::kTop;
      result.rescale[row] = grown ? Hook::kTop * rcp(max[row]) : 1.0f;
      result.block_sum[row] *= result.rescale[row];
      if (grown) rows.ref[row] += lg2(max[row]) - Hook::kTopLog2;
    }
#pragma unroll
    for (int i = 0; i < Count; ++i) p[i] *= result.rescale[fragment_row_index(i)];
  }

  // In shared memory, where it takes no registers; the next block's barrier tells the other lanes.
  __device__ __forceinline__ void count_fire(int block) {
    if (thread_in_block() % kWarpSize != 0) return;
    const int fires = ++mine_.fired_guards, visited = mine_.blocks.count - block;
    if (fires >= kFewGuardFires && 2 * fires > visited) mine_.blocks.online_from = 0;
  }

  // NaN is not.
  __device__ __forceinline__ static bool within(const StepResult& result, float bound) {
    return result.block_sum[0] <= bound && result.block_sum[1] <= bound;
  }

  __device__ __forceinline__ const WarpBlocks& blocks() const {
    return mine_.blocks;
  }

  const Hook score_;
  WarpWork& mine_;
  const ForwardParams& params_;
  const TileWork<C>& work_;
};

}  // namespace fa3::ampere
