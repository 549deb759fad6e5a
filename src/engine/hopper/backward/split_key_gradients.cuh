// SPDX-License-Identifier: Apache-2.0
// Warpgroups 1 and 2 where head dims are beyond 128: dK or dV of 64 keys alone fills a warpgroup's
// registers, so each sums one of them, over all queries that see the keys. A step:
//
//   dV's warpgroup   S  = K Q^T    P = 2^(S - LSE)       P goes to dK's warpgroup   dV += P dO
//   dK's warpgroup   dP = V dO^T   dS = P (dP - Delta)   dS goes to warpgroup 0     dK += dS Q
//
// A warpgroup multiplies its next tile behind its sum, and works on the tile while the others
// multiply. As in key_gradients.cuh, P, dP and dS stand for their transposes.
#pragma once

#include "engine/hopper/backward/backward_smem.cuh"
#include "engine/hopper/backward/score_tile.cuh"
#ifdef FA3_SCORE_FUNCTION
#include "engine/hopper/backward/function_tile.cuh"
#endif
#include "engine/hopper/backward/store_keys.cuh"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/fence.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

enum class KeyGradient { kDv, kDk };

template <BackwardConfig C, KeyGradient Sum>
class SplitKeyGradients {
 public:
  __device__ __forceinline__ SplitKeyGradients(const BackwardParams& params,
                                               BackwardAddresses<C> at, const KeyBlockWork<C>& work)
      : params_(params),
        at_(at),
        work_(work),
        first_key_(work.first_key()),
        dropout_(params.dropout, first_key_, at.dropout_bits(0), int(BackwardBarrier::kDraws)) {}

  __device__ __forceinline__ void run() {
    float sums[kSumTile.columns / 2] = {};
    if (work_.num_steps() > 0) sum(sums);
    // Asked at run time: in a kernel with add() alone the compiler serialises the products.
    if (C.splits_heads && params_.order.head_splits > 1) {
      add(sums);
    } else {
      store(sums);
    }
  }

 private:
  using Tile = ScoreTile<C>;
  using Cursor = PipelineState<C.stages>;
  static constexpr bool kSumsDv = Sum == KeyGradient::kDv;
  static constexpr tile::TileLayout kKeys = kSumsDv ? C.k_tile() : C.v_tile();
  static constexpr tile::TileLayout kScored = kSumsDv ? C.q_tile() : C.d_o_tile();
  static constexpr tile::TileLayout kSummed = kSumsDv ? C.d_o_tile() : C.q_tile();
  static constexpr tile::TileLayout kSumTile{kRowsPerWarpgroup, kSummed.columns};
  // Products of 256 columns need more registers than a launch of 512 threads gives each.
  static constexpr int kSumParts = kSummed.columns > 192 ? 2 : 1;
  static constexpr tile::TileLayout kSumPart{kSummed.rows, kSummed.columns / kSumParts};
  static_assert(kSumParts == 1 || kSumPart.slab_columns() == kSummed.slab_columns());
  static_assert(C.block_n == kRowsPerWarpgroup && kSumTile.bytes() <= kSummed.bytes());

  __device__ __forceinline__ void add(float (&sums)[kSumTile.columns / 2]) {
    constexpr AccumLayout kAccum = kSumsDv ? C.dv_accum() : C.dk_accum();
    float* const all = kSumsDv ? params_.dkv_accum.dv : params_.dkv_accum.dk;
    add_gradient<kAccum>(all + dkv_block(params_) * kAccum.block_floats(), 0, sums,
                         kSumsDv ? value_scale<C>(params_) : work_.scale());
  }

  __device__ __forceinline__ void store(const float (&sums)[kSumTile.columns / 2]) {
    keys_done(int(Sum));
    store_gradient<C.element, kSumTile>(gradient(), sums,
                                        kSumsDv ? value_scale<C>(params_) : work_.scale());
    ptx::fence_proxy_async();
    ptx::bar_sync(int(BackwardBarrier::kStore) + int(Sum), kWarpgroupSize);
    if (!stores()) return;
    copy_gradient<kSumTile, C.general()>(kSumsDv ? params_.dv_map : params_.dk_map,
                                         kSumsDv ? params_.columns_v : params_.columns, gradient(),
                                         work_.gradients(first_key_));
    finish_copies();
  }

  __device__ __forceinline__ void sum(float (&sums)[kSumTile.columns / 2]) {
    const QuerySteps steps = work_.steps();
    const int num_steps = work_.num_steps();
    QueryBlock block = work_.first_queries();
    typename Tile::Scores tile;
    typename Tile::Packed packed;
    keys_pipeline().wait_full({});
    issue_tile(tile);
    transform(tile, packed, block);
    summed_pipeline().wait_full(cursor_);
    for (int step = 1; step < num_steps; ++step) {
      issue_sum(sums, packed);
      block.advance(steps);
      cursor_.advance();
      issue_tile(tile);
      transform(tile, packed, block);
      summed_pipeline().wait_full(cursor_);
    }
    issue_sum(sums, packed);
    ptx::wgmma_wait_group<0>();
  }

  __device__ __forceinline__ void issue_tile(typename Tile::Scores& tile) {
    scored_pipeline().wait_full(cursor_);
    // Computed in each step: the descriptors of all products would not fit the registers.
    const uint32_t keys_low = uniform(tile::k_major_low(keys()));
    ptx::wgmma_fence();
    tile::issue_abt<C.element, kKeys, kScored>(tile, keys_low, tile::k_major_low(scored()));
    ptx::wgmma_commit_group();
  }

  __device__ __forceinline__ void issue_sum(float (&sums)[kSumTile.columns / 2],
                                            const typename Tile::Packed& packed) {
    ptx::wgmma_fence();
#pragma unroll
    for (int part = 0; part < kSumParts; ++part) {
      const uint32_t summed_part = summed() + part * (kSumPart.bytes());
      tile::issue_ab<C.element, kSumPart>(
          reinterpret_cast<float(&)[kSumPart.columns / 2]>(sums[part * (kSumPart.columns / 2)]),
          packed, tile::mn_major_low(kSumPart, summed_part));
    }
    ptx::wgmma_commit_group();
  }

  // Waits for what was issued; then the tile: S to P, or dP to dS, packed and handed over.
  __device__ __forceinline__ void transform(typename Tile::Scores& tile,
                                            typename Tile::Packed& packed, QueryBlock block) {
    std::conditional_t<kSumsDv, typename Tile::Lse, typename Tile::Statistics> statistics;
    Tile::read(statistics, kSumsDv ? at_.lse(cursor_.stage()) : at_.delta(cursor_.stage()));
    if constexpr (kSumsDv) {
      dropout_.draw(work_.sequence(), block.head, block.m_block * C.block_m);
    }
    ptx::wgmma_wait_group<0>();
    release_summed();
    if constexpr (kSumsDv) {
      exponentiate(tile, statistics, block);
    } else {
      differentiate(tile, statistics, block);
    }
    if constexpr (kSumsDv) {
      Tile::pack_kept(packed, tile, at_.p(out_.stage()));
    } else {
      Tile::pack(packed, tile);
    }
    hand_over(packed);
    if (is_lane_0()) scored_pipeline().release(cursor_.stage());  // statistics and all
  }

  // The stage of the step before, as soon as its sum is over: with two stages the loads are late
  // otherwise.
  __device__ __forceinline__ void release_summed() {
    if (sums_behind_++ == 0) return;
    if (is_lane_0()) summed_pipeline().release(spent_.stage());
    spent_.advance();
  }

  __device__ __forceinline__ void exponentiate(typename Tile::Scores& scores,
                                               const typename Tile::Lse& lse, QueryBlock block) {
    const int first_row = block.m_block * C.block_m;
    const auto score = Tile::score_of(params_);
    if constexpr (kHasScoreFunction) {
      if constexpr (C.stores_other_p()) at_.p_pipeline().wait_empty(out_);
      FunctionTile<C>::prepare(scores, params_, place_of(block), at_.p(out_.stage()), 0);
    } else {
      score.prepare(scores);
    }
    if (Tile::is_masked(unmasked_queries(work_.extents(), first_key_, C.block_n), first_row)) {
      Tile::mask(scores, work_.extents(), first_key_, first_row);
    }
    if constexpr (kHasScoreFunction) {
      FunctionTile<C>::exponentiate(scores, lse, score, at_.p(out_.stage()));
    } else {
      if constexpr (C.stores_other_p()) at_.p_pipeline().wait_empty(out_);
      Tile::exponentiate(scores, lse, score, at_.p(out_.stage()), dropout_);
    }
  }
  __device__ __forceinline__ TilePlace place_of(QueryBlock block) const {
    return {work_.sequence(), block.head, first_key_, block.m_block * C.block_m};
  }

  __device__ __forceinline__ void differentiate(typename Tile::Scores& dp,
                                                const typename Tile::Statistics& delta,
                                                QueryBlock block) {
    typename Tile::Packed p;
    at_.p_pipeline().wait_full(p_cursor_);
    Tile::load_packed(p, at_.p(p_cursor_.stage()));
    __syncwarp();
    if (is_lane_0()) at_.p_pipeline().release(p_cursor_.stage());
    p_cursor_.advance();
    if constexpr (kHasScoreFunction) {
      FunctionTile<C>::differentiate(dp, p, delta, params_, place_of(block), 0);
    } else {
      Tile::differentiate(dp, p, delta, dropout_);
    }
  }

  // P in registers' order, for the same thread of dK's warpgroup, unless exponentiate() has stored
  // its other form; dS as a tile for a product.
  __device__ __forceinline__ void hand_over(const typename Tile::Packed& packed) {
    const Pipeline<C.ds_stages> pipeline = kSumsDv ? at_.p_pipeline() : at_.ds_pipeline();
    if constexpr (!kSumsDv || !C.stores_other_p()) pipeline.wait_empty(out_);
    if constexpr (kSumsDv && !C.stores_other_p()) {
      Tile::store_packed(at_.p(out_.stage()), packed);
    } else if constexpr (!kSumsDv) {
      Tile::store_transposed(at_.ds(out_.stage()), 0, packed);
      ptx::fence_proxy_async();
    }
    __syncwarp();
    if (is_lane_0()) ptx::mbarrier_arrive(pipeline.full(out_.stage()));
    out_.advance();
  }

  __device__ __forceinline__ Pipeline<1> keys_pipeline() const {
    return kSumsDv ? at_.k_once() : at_.v_once();
  }
  __device__ __forceinline__ Pipeline<C.stages> scored_pipeline() const {
    return kSumsDv ? at_.q_pipeline() : at_.d_o_pipeline();
  }
  __device__ __forceinline__ Pipeline<C.stages> summed_pipeline() const {
    return kSumsDv ? at_.d_o_pipeline() : at_.q_pipeline();
  }
  __device__ __forceinline__ uint32_t keys() const {
    return kSumsDv ? at_.k() : at_.v();
  }
  __device__ __forceinline__ uint32_t scored() const {
    return kSumsDv ? at_.q(cursor_.stage()) : at_.d_o(cursor_.stage());
  }
  __device__ __forceinline__ uint32_t summed() const {
    return kSumsDv ? at_.d_o(cursor_.stage()) : at_.q(cursor_.stage());
  }
  // At the end the gradient lies in the first stage of what was summed.
  __device__ __forceinline__ uint32_t gradient() const {
    return kSumsDv ? at_.d_o(0) : at_.q(0);
  }
  __device__ __forceinline__ bool is_lane_0() const {
    return threadIdx.x % kWarpSize == 0;
  }

  const BackwardParams& params_;
  const BackwardAddresses<C> at_;
  const KeyBlockWork<C>& work_;
  const int first_key_;
  [[no_unique_address]] typename Tile::DropoutHook dropout_;
  Cursor cursor_;
  Cursor spent_;  // the stage of the step before in summed_pipeline()
  int sums_behind_ = 0;
  PipelineState<C.ds_stages> out_;
  PipelineState<C.ds_stages> p_cursor_;
};

}  // namespace fa3::hopper
