// SPDX-License-Identifier: Apache-2.0
// Warpgroups 1 and 2 where head dims are beyond 128: dK or dV of 64 keys alone fills a warpgroup's
// registers, so each sums one of them, over all queries that see the keys. A step:
//
//   weights side     S  = K Q^T    P = 2^(S - LSE)       P goes to the other side    dV += P dO
//   gradients side   dP = V dO^T   dS = P (dP - Delta)   dS goes to warpgroup 0      dK += dS Q
//
// A side multiplies its next tile behind its sum, and works on the tile while the other side and
// warpgroup 0 multiply. As in key_gradients.cuh, P, dP and dS stand for their transposes.
#pragma once

#include "engine/hopper/backward/backward_smem.cuh"
#include "engine/hopper/backward/score_tile.cuh"
#include "engine/hopper/backward/store_keys.cuh"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/fence.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

enum class KeySide { kWeights, kGradients };

template <BackwardConfig C, KeySide Side>
class SideGradients {
 public:
  __device__ __forceinline__ SideGradients(const BackwardParams& params, BackwardAddresses<C> at,
                                           const KeyBlockWork<C>& work)
      : params_(params), at_(at), work_(work), first_key_(work.first_key()) {}

  __device__ __forceinline__ void run() {
    float sums[kSumTile.columns / 2] = {};
    if (work_.num_steps() > 0) sum(sums);
    if (C.shares_keys && params_.order.shares > 1) {  // a kernel that only adds is serialised
      add(sums);
    } else {
      store(sums);
    }
  }

 private:
  using Tile = ScoreTile<C>;
  using Cursor = PipelineState<C.stages>;
  static constexpr bool kWeights = Side == KeySide::kWeights;
  static constexpr tile::TileLayout kKeys = kWeights ? C.k_layout() : C.v_layout();
  static constexpr tile::TileLayout kScored = kWeights ? C.q_layout() : C.d_o_layout();
  static constexpr tile::TileLayout kSummed = kWeights ? C.d_o_layout() : C.q_layout();
  static constexpr tile::TileLayout kSumTile{kRowsPerWarpgroup, kSummed.columns};
  // Products of 256 columns need more registers than a launch of 512 threads gives each.
  static constexpr int kSumParts = kSummed.columns > 192 ? 2 : 1;
  static constexpr tile::TileLayout kSumPart{kSummed.rows, kSummed.columns / kSumParts};
  static_assert(kSumParts == 1 || kSumPart.slab_columns() == kSummed.slab_columns());
  static_assert(C.block_n == kRowsPerWarpgroup && kSumTile.bytes() <= kSummed.bytes());

  __device__ __forceinline__ void add(float (&sums)[kSumTile.columns / 2]) {
    constexpr SumParts kParts = kWeights ? C.dv_parts() : C.dk_parts();
    float* const all = kWeights ? params_.key_sums.dv : params_.key_sums.dk;
    add_gradient<kParts>(all + chunk_of_share(params_) * kParts.chunk_floats(), 0, sums,
                         kWeights ? 1.0f : work_.scale());
  }

  __device__ __forceinline__ void store(const float (&sums)[kSumTile.columns / 2]) {
    keys_done(int(Side));
    store_gradient<C.element, kSumTile>(gradient(), sums, kWeights ? 1.0f : work_.scale());
    ptx::fence_proxy_async();
    ptx::bar_sync(int(BackwardBarrier::kStore) + int(Side), kWarpgroupSize);
    if (!stores()) return;
    copy_gradient<kSumTile, C.general()>(kWeights ? params_.dv_map : params_.dk_map,
                                         kWeights ? params_.columns_v : params_.columns, gradient(),
                                         work_.gradients(first_key_));
    finish_copies();
  }

  __device__ __forceinline__ void sum(float (&sums)[kSumTile.columns / 2]) {
    const QuerySteps steps = work_.steps();
    const int num_steps = work_.num_steps();
    QueryBlock block = work_.first_queries();
    typename Tile::Scores tile;
    typename Tile::Packed packed;
    keys_ring().wait_full({});
    issue_tile(tile);
    transform(tile, packed, block.m_block);
    summed_pipeline().wait_full(cursor_);
    for (int step = 1; step < num_steps; ++step) {
      issue_sum(sums, packed);
      block.advance(steps);
      cursor_.advance();
      issue_tile(tile);
      transform(tile, packed, block.m_block);
      summed_pipeline().wait_full(cursor_);
    }
    issue_sum(sums, packed);
    ptx::wgmma_wait_group<0>();
  }

  __device__ __forceinline__ void issue_tile(typename Tile::Scores& tile) {
    scored_pipeline().wait_full(cursor_);
    // Computed at every turn: kept, the descriptors of all steps would not fit the registers.
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

  // What was issued, to its end; then the tile: S to P, or dP to dS, packed and handed over.
  __device__ __forceinline__ void transform(typename Tile::Scores& tile,
                                            typename Tile::Packed& packed, int m_block) {
    std::conditional_t<kWeights, typename Tile::Lse, typename Tile::Statistics> statistics;
    Tile::read(statistics, kWeights ? at_.lse(cursor_.stage()) : at_.delta(cursor_.stage()));
    ptx::wgmma_wait_group<0>();
    release_summed();
    if constexpr (kWeights) {
      weigh(tile, statistics, m_block * C.block_m);
    } else {
      differentiate(tile, statistics);
    }
    Tile::pack(packed, tile);
    hand_over(packed);
    if (is_lane_0()) scored_pipeline().release(cursor_.stage());  // statistics and all
  }

  // The stage of the step before, as soon as its sum is over: with two stages its loads have no
  // time to lose.
  __device__ __forceinline__ void release_summed() {
    if (sums_behind_++ == 0) return;
    if (is_lane_0()) summed_pipeline().release(spent_.stage());
    spent_.advance();
  }

  __device__ __forceinline__ void weigh(typename Tile::Scores& scores,
                                        const typename Tile::Lse& lse, int first_row) {
    const auto score = Tile::score_of(params_);
    score.prepare(scores);
    if (Tile::is_masked(free_queries(work_.extents(), first_key_, C.block_n), first_row)) {
      Tile::mask(scores, work_.extents(), first_key_, first_row);
    }
    if constexpr (C.capped()) at_.p_pipeline().wait_empty(out_);
    Tile::exponentiate(scores, lse, score, at_.p(out_.stage()));
  }

  __device__ __forceinline__ void differentiate(typename Tile::Scores& dp,
                                                const typename Tile::Statistics& delta) {
    typename Tile::Packed p;
    at_.p_pipeline().wait_full(p_cursor_);
    Tile::load_packed(p, at_.p(p_cursor_.stage()));
    __syncwarp();
    if (is_lane_0()) at_.p_pipeline().release(p_cursor_.stage());
    p_cursor_.advance();
    Tile::differentiate(dp, p, delta);
  }

  // P as registers hold it, for the same thread of the other side, unless weigh() has stored it
  // times the cap's slope; dS as a tile for a product.
  __device__ __forceinline__ void hand_over(const typename Tile::Packed& packed) {
    const Pipeline<C.ds_stages> pipeline = kWeights ? at_.p_pipeline() : at_.ds_pipeline();
    if constexpr (!kWeights || !C.capped()) pipeline.wait_empty(out_);
    if constexpr (kWeights && !C.capped()) {
      Tile::store_packed(at_.p(out_.stage()), packed);
    } else if constexpr (!kWeights) {
      Tile::store_transposed(at_.ds(out_.stage()), 0, packed);
      ptx::fence_proxy_async();
    }
    __syncwarp();
    if (is_lane_0()) ptx::mbarrier_arrive(pipeline.full(out_.stage()));
    out_.advance();
  }

  __device__ __forceinline__ Pipeline<1> keys_ring() const {
    return kWeights ? at_.k_once() : at_.v_once();
  }
  __device__ __forceinline__ Pipeline<C.stages> scored_pipeline() const {
    return kWeights ? at_.q_pipeline() : at_.d_o_pipeline();
  }
  __device__ __forceinline__ Pipeline<C.stages> summed_pipeline() const {
    return kWeights ? at_.d_o_pipeline() : at_.q_pipeline();
  }
  __device__ __forceinline__ uint32_t keys() const {
    return kWeights ? at_.k() : at_.v();
  }
  __device__ __forceinline__ uint32_t scored() const {
    return kWeights ? at_.q(cursor_.stage()) : at_.d_o(cursor_.stage());
  }
  __device__ __forceinline__ uint32_t summed() const {
    return kWeights ? at_.d_o(cursor_.stage()) : at_.q(cursor_.stage());
  }
  // At the end, in the first stage of what was summed.
  __device__ __forceinline__ uint32_t gradient() const {
    return kWeights ? at_.d_o(0) : at_.q(0);
  }
  __device__ __forceinline__ bool is_lane_0() const {
    return threadIdx.x % kWarpSize == 0;
  }

  const BackwardParams& params_;
  const BackwardAddresses<C> at_;
  const KeyBlockWork<C>& work_;
  const int first_key_;
  Cursor cursor_;
  Cursor spent_;  // of what was summed
  int sums_behind_ = 0;
  PipelineState<C.ds_stages> out_;
  PipelineState<C.ds_stages> p_cursor_;
};

}  // namespace fa3::hopper
