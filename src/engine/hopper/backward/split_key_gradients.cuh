// SPDX-License-Identifier: Apache-2.0
// Warpgroups 1 and 2 where head dims are beyond 128: dK or dV of 64 keys alone fills a warpgroup's
// registers, so each sums one of them, over all queries that see the keys. A step:
//
//   dV's warpgroup   S  = K Q^T    P = 2^(S - LSE)       P goes to dK's warpgroup   dV += P dO
//   dK's warpgroup   dP = V dO^T   dS = P (dP - Delta)   dS goes to warpgroup 0     dK += dS Q
//
// A warpgroup multiplies its next tile behind its sum, and works on the tile while the others
// multiply. In a pair (key_block_pair.cuh) dO comes in halves, and P leaves its place to dS. As in
// key_gradients.cuh, P, dP and dS stand for their transposes.
#pragma once

#include "engine/hopper/backward/backward_smem.cuh"
#include "engine/hopper/backward/scores/score_tile.cuh"
#ifdef FA3_SCORE_FUNCTION
#include "engine/hopper/backward/scores/function_tile.cuh"
#endif
#include "engine/hopper/backward/store_keys.cuh"
#include "engine/hopper/pipeline/roles.cuh"
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
    if (C.splits_steps() && params_.order.step_splits > 1) {
      add(sums);
    } else {
      store(sums);
    }
  }

 private:
  using Tile = ScoreTile<C>;
  using QCursor = PipelineState<C.shape.stages>;
  using DoCursor = PipelineState<C.d_o_stages()>;  // of dO's parts
  static constexpr bool kSumsDv = Sum == KeyGradient::kDv;
  static constexpr int kDoParts = C.d_o_parts();
  static constexpr tile::TileLayout kVPart{C.v_tile().rows, C.v_tile().columns / kDoParts};
  static constexpr tile::TileLayout kSummed = kSumsDv ? C.d_o_tile() : C.q_tile();
  static constexpr tile::TileLayout kSumTile{kRowsPerWarpgroup, kSummed.columns};
  // Products of 256 columns need more registers than a launch of 512 threads gives each.
  static constexpr int kSumParts = kSummed.columns > 192 ? 2 : 1;
  static constexpr tile::TileLayout kSumPart{kSummed.rows, kSummed.columns / kSumParts};
  static_assert(kSumParts == 1 || kSumPart.slab_columns() == kSummed.slab_columns());
  static_assert(!kSumsDv || kSumParts % kDoParts == 0);
  static_assert(C.shape.block_n == kRowsPerWarpgroup && kSumTile.bytes() <= kSummed.bytes());

  __device__ __forceinline__ void add(float (&sums)[kSumTile.columns / 2]) {
    constexpr AccumLayout kAccum = kSumsDv ? C.dv_accum() : C.dk_accum();
    float* const all = kSumsDv ? params_.dkv_accum.dv : params_.dkv_accum.dk;
    add_gradient<kAccum>(all + dkv_block<C>(params_) * kAccum.block_floats(),
                         C.pairs() ? int(ptx::cluster_rank()) : 0, sums,
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
    (kSumsDv ? at_.k_pipeline() : at_.v_pipeline()).wait_full({});
    issue_tile(tile);
    transform(tile, packed, block);
    for (int step = 1; step < num_steps; ++step) {
      issue_sum(sums, packed);
      block.advance(steps);
      q_.advance();
      issue_tile(tile);
      transform(tile, packed, block);
    }
    issue_sum(sums, packed);
    ptx::wgmma_wait_group<0>();
  }

  // S, or dP of dO's parts. Descriptors are computed in each step: those of all products would not
  // fit the registers.
  __device__ __forceinline__ void issue_tile(typename Tile::Scores& tile) {
    if constexpr (kSumsDv) {
      at_.q_pipeline().wait_full(q_);
      const uint32_t k = uniform(tile::k_major_low(at_.in_cta(at_.k())));
      ptx::wgmma_fence();
      tile::issue_abt<C.element, C.k_tile(), C.q_tile()>(
          tile, k, tile::k_major_low(at_.in_cta(at_.q(q_.stage()))));
    } else {
      DoCursor part = d_o_;
#pragma unroll
      for (int i = 0; i < kDoParts; ++i, part.advance()) {
        at_.d_o_pipeline().wait_full(part);
        const uint32_t v = uniform(tile::k_major_low(at_.in_cta(at_.v()) + i * kVPart.bytes()));
        ptx::wgmma_fence();
        tile::issue_abt<C.element, kVPart, C.d_o_part()>(
            tile, v, tile::k_major_low(at_.in_cta(at_.d_o(part.stage()))), i > 0);
      }
    }
    ptx::wgmma_commit_group();
  }

  // dV's products are a group for each part of dO.
  __device__ __forceinline__ void issue_sum(float (&sums)[kSumTile.columns / 2],
                                            const typename Tile::Packed& packed) {
    if constexpr (kSumsDv) at_.d_o_pipeline().wait_full(d_o_);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSumParts; ++i) {
      constexpr bool kInStages = kSumsDv && kDoParts > 1;
      if (kInStages && i > 0) {
        at_.d_o_pipeline().wait_full(d_o_);
        ptx::wgmma_fence();
      }
      const uint32_t part = kInStages ? at_.d_o(d_o_.stage()) : summed() + i * kSumPart.bytes();
      tile::issue_ab<C.element, kSumPart>(
          reinterpret_cast<float(&)[kSumPart.columns / 2]>(sums[i * (kSumPart.columns / 2)]),
          packed, tile::mn_major_low(kSumPart, at_.in_cta(part)));
      if (kInStages || i + 1 == kSumParts) ptx::wgmma_commit_group();
      if (kSumsDv && (kInStages || i + 1 == kSumParts)) d_o_.advance();
    }
  }

  // Waits for what was issued; then the tile: S to P, or dP to dS, packed and handed over.
  __device__ __forceinline__ void transform(typename Tile::Scores& tile,
                                            typename Tile::Packed& packed, QueryBlock block) {
    std::conditional_t<kSumsDv, typename Tile::Lse, typename Tile::Statistics> statistics;
    if constexpr (!kSumsDv) at_.q_pipeline().wait_full(q_);  // which has both statistics
    Tile::read(statistics, kSumsDv ? at_.lse(q_.stage()) : at_.delta(q_.stage()));
    if constexpr (kSumsDv) {
      dropout_.draw(work_.sequence(), block.head, block.m_block * C.shape.block_m);
    }
    wait_and_release_summed();
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
    if constexpr (kSumsDv) {
      if (is_lane_0()) at_.q_pipeline().release(q_.stage());  // with its LSEs
    } else {
      for (int i = 0; i < kDoParts; ++i) release_part(d_o_);
    }
  }

  // The stages of the sum of the step before, as soon as it is over: with two or three of them the
  // loads are late otherwise. Behind each group of the sum are the others and that of the tile.
  __device__ __forceinline__ void wait_and_release_summed() {
    const bool sums = sums_behind_++ > 0;
    if constexpr (kSumsDv && kDoParts == 2) {
      ptx::wgmma_wait_group<2>();
      if (sums) release_part(summed_);
      ptx::wgmma_wait_group<1>();
      if (sums) release_part(summed_);
    }
    ptx::wgmma_wait_group<0>();
    if (!sums) return;
    if constexpr (!kSumsDv) {
      if (is_lane_0()) at_.q_pipeline().release(summed_.stage());
      summed_.advance();
    } else if constexpr (kDoParts == 1) {
      release_part(summed_);
    }
  }
  __device__ __forceinline__ void release_part(DoCursor& part) {
    if (is_lane_0()) at_.d_o_pipeline().release(part.stage());
    part.advance();
  }

  __device__ __forceinline__ void exponentiate(typename Tile::Scores& scores,
                                               const typename Tile::Lse& lse, QueryBlock block) {
    const int first_row = block.m_block * C.shape.block_m;
    const auto score = Tile::score_of(params_);
    if constexpr (kHasScoreFunction) {
      if constexpr (C.stores_other_p()) at_.p_pipeline().wait_empty(out_);
      FunctionTile<C>::prepare(scores, params_, place_of(block), at_.p(out_.stage()), 0);
    } else {
      score.prepare(scores);
    }
    if (Tile::is_masked(unmasked_queries(work_.extents(), first_key_, C.shape.block_n),
                        first_row)) {
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
    return {work_.sequence(), block.head, first_key_, block.m_block * C.shape.block_m};
  }

  __device__ __forceinline__ void differentiate(typename Tile::Scores& dp,
                                                const typename Tile::Statistics& delta,
                                                QueryBlock block) {
    typename Tile::Packed p;
    at_.p_pipeline().wait_full(p_cursor_);
    Tile::load_packed(p, at_.p(p_cursor_.stage()));
    __syncwarp();
    // In a pair dS takes P's place.
    if (!C.pairs() && is_lane_0()) at_.p_pipeline().release(p_cursor_.stage());
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
    const Pipeline<C.shape.ds_stages> pipeline = kSumsDv ? at_.p_pipeline() : at_.ds_pipeline();
    if constexpr (kSumsDv ? !C.stores_other_p() : !C.pairs()) pipeline.wait_empty(out_);
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

  __device__ __forceinline__ uint32_t summed() const {
    return kSumsDv ? at_.d_o(d_o_.stage()) : at_.q(q_.stage());
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
  QCursor q_;
  DoCursor d_o_;
  std::conditional_t<kSumsDv, DoCursor, QCursor> summed_;  // what the sum before has read
  int sums_behind_ = 0;
  PipelineState<C.shape.ds_stages> out_;
  PipelineState<C.shape.ds_stages> p_cursor_;
};

}  // namespace fa3::hopper
