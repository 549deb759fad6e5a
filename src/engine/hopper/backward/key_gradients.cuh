// SPDX-License-Identifier: Apache-2.0
// Warpgroups 1 and 2: dK and dV of 64 keys each, summed in registers over all queries that see them.
// Tiles are transposed, keys by queries, so that weights and dS come out of the accumulators as the
// left operands of the sums. A step (Algorithm 3 of the paper, S one block ahead):
//
//   dP = V dO^T         beside   dV += P dO
//   dS = P (dP - Delta) under dV; dS goes to warpgroup 0 through shared memory
//   S  = K Q'^T         beside   dK += dS Q        Q' of the next query block
//   P  = 2^(S - LSE)    under dK
//
// P, dP and dS stand for their transposes throughout. Next: store_keys.cuh.
#pragma once

#include "engine/hopper/backward/backward_smem.cuh"
#include "engine/hopper/backward/score_tile.cuh"
#include "engine/hopper/backward/store_keys.cuh"
#include "engine/hopper/ptx/fence.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

template <BackwardConfig C>
class KeyGradients {
 public:
  __device__ __forceinline__ KeyGradients(const BackwardParams& params, BackwardAddresses<C> at,
                                          const KeyBlockWork<C>& work, int warpgroup)
      : params_(params),
        at_(at),
        work_(work),
        warpgroup_(warpgroup),
        first_key_(work.at.n_block * C.block_n + warpgroup * kRowsPerWarpgroup),
        free_from_(free_from(params.extents, first_key_, kRowsPerWarpgroup)) {}

  __device__ __forceinline__ void run() {
    float dk[C.head_dim / 2] = {};
    float dv[C.head_dim_v / 2] = {};
    if (work_.num_steps > 0) sum(dk, dv);
    keys_done<C>();
    store_gradient<C.element, kDk>(at_.q(warpgroup_), dk, params_.scale);
    store_gradient<C.element, kDv>(at_.d_o(warpgroup_), dv, 1.0f);
    ptx::fence_proxy_async();
    ptx::bar_sync(int(BackwardBarrier::kStore) + warpgroup_, kWarpgroupSize);
    if (!stores()) return;
    copy_gradient<kDk>(params_.dk_map, at_.q(warpgroup_), work_.at, first_key_);
    copy_gradient<kDv>(params_.dv_map, at_.d_o(warpgroup_), work_.at, first_key_);
    finish_copies();
  }

 private:
  using Tile = ScoreTile<C>;
  using Cursor = RingCursor<C.stages>;
  static constexpr tile::TileLayout kQ = C.q_layout();
  static constexpr tile::TileLayout kK = C.k_layout();
  static constexpr tile::TileLayout kV = C.v_layout();
  static constexpr tile::TileLayout kDo = C.d_o_layout();
  static constexpr tile::TileLayout kDk{kRowsPerWarpgroup, C.head_dim};
  static constexpr tile::TileLayout kDv{kRowsPerWarpgroup, C.head_dim_v};
  static_assert(kDk.bytes() <= kQ.bytes() && kDv.bytes() <= kDo.bytes());
  static_assert(C.key_warpgroups() <= C.stages);

  __device__ __forceinline__ void sum(float (&dk)[C.head_dim / 2], float (&dv)[C.head_dim_v / 2]) {
    QueryBlock block = QueryBlock::first(params_, work_.at, work_.steps);
    // Carried as floats and packed at the loop's top: packed ones over the back edge are serialised.
    typename Tile::Scores p;
    first_weights(p, block.m_block);
    at_.v_once().wait_full({});
    at_.d_o_ring().wait_full(cursor_);
    for (int step = 1;; ++step) {
      const bool last = step == work_.num_steps;
      typename Tile::Packed ds;
      score_gradient(ds, p, dv);
      if (!last) at_.q_ring().wait_full(cursor_.next());
      Tile::move(ds, ds, params_.zero);
      if (last) {
        last_key_gradient(dk, ds);
        return;
      }
      block.advance(work_.steps);
      next_weights(p, block.m_block, dk, ds);
      cursor_.advance();
    }
  }

  __device__ __forceinline__ void first_weights(typename Tile::Scores& p, int m_block) {
    at_.k_once().wait_full({});
    at_.q_ring().wait_full(cursor_);
    typename Tile::Statistics lse;
    Tile::read(lse, at_.lse(cursor_.slot()));
    ptx::wgmma_fence();
    issue_scores(p, cursor_.slot());
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    exponentiate(p, lse, m_block);
  }

  // dS = P (dP - Delta), under dV += P dO. `p` comes in as P and leaves as dS.
  __device__ __forceinline__ void score_gradient(typename Tile::Packed& packed,
                                                 typename Tile::Scores& p,
                                                 float (&dv)[C.head_dim_v / 2]) {
    const uint32_t slot = cursor_.slot();
    Tile::pack(packed, p);
    ptx::wgmma_fence();
    tile::issue_abt<C.element, kV, kDo>(
        p, tile::k_major_low(at_.v() + warpgroup_ * kRowsPerWarpgroup * kV.row_bytes()),
        tile::k_major_low(at_.d_o(slot)));
    ptx::wgmma_commit_group();
    tile::issue_ab<C.element, kDo>(dv, packed, tile::mn_major_low(kDo, at_.d_o(slot)));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>();
    typename Tile::Statistics delta;
    Tile::read(delta, at_.delta(slot));
    Tile::differentiate(p, packed, delta);
    at_.ds_ring().wait_empty(ds_cursor_);
    Tile::pack(packed, p);
    hand_over(packed);
    ptx::wgmma_wait_group<0>();
  }

  // To warpgroup 0.
  __device__ __forceinline__ void hand_over(const typename Tile::Packed& ds) {
    Tile::store_transposed(at_.ds(ds_cursor_.slot()), warpgroup_ * kRowsPerWarpgroup, ds);
    ptx::fence_proxy_async();
    __syncwarp();
    if (is_lane_0()) ptx::mbarrier_arrive(at_.ds_ring().full(ds_cursor_.slot()));
    ds_cursor_.advance();
  }

  // The next block's P, under dK += dS Q.
  __device__ __forceinline__ void next_weights(typename Tile::Scores& p, int m_block,
                                               float (&dk)[C.head_dim / 2],
                                               const typename Tile::Packed& ds) {
    const Cursor next = cursor_.next();
    ptx::wgmma_fence();
    issue_scores(p, next.slot());
    ptx::wgmma_commit_group();
    tile::issue_ab<C.element, kQ>(dk, ds, tile::mn_major_low(kQ, at_.q(cursor_.slot())));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>();
    typename Tile::Statistics lse;  // read only now: held under the product, 3% slower
    Tile::read(lse, at_.lse(next.slot()));
    exponentiate(p, lse, m_block);
    at_.d_o_ring().wait_full(next);
    ptx::wgmma_wait_group<0>();
  }

  __device__ __forceinline__ void last_key_gradient(float (&dk)[C.head_dim / 2],
                                                    const typename Tile::Packed& ds) {
    ptx::wgmma_fence();
    tile::issue_ab<C.element, kQ>(dk, ds, tile::mn_major_low(kQ, at_.q(cursor_.slot())));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
  }

  __device__ __forceinline__ void issue_scores(typename Tile::Scores& scores, uint32_t slot) {
    tile::issue_abt<C.element, kK, kQ>(
        scores, tile::k_major_low(at_.k() + warpgroup_ * kRowsPerWarpgroup * kK.row_bytes()),
        tile::k_major_low(at_.q(slot)));
  }

  __device__ __forceinline__ void exponentiate(typename Tile::Scores& scores,
                                               const typename Tile::Statistics& lse, int m_block) {
    const int first_row = m_block * C.block_m;
    if (first_row < free_from_) Tile::mask(scores, params_.extents, first_key_, first_row);
    Tile::exponentiate(scores, lse, params_.scale_log2);
  }

  __device__ __forceinline__ bool is_lane_0() const { return threadIdx.x % kWarpSize == 0; }

  const BackwardParams& params_;
  const BackwardAddresses<C> at_;
  const KeyBlockWork<C>& work_;
  const int warpgroup_;
  const int first_key_;
  const int free_from_;  // queries from here on see all keys of this warpgroup
  Cursor cursor_;
  RingCursor<C.ds_slots> ds_cursor_;
};

}  // namespace fa3::hopper
