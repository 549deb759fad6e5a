// SPDX-License-Identifier: Apache-2.0
// Warpgroups 1 and 2: dK and dV of 64 keys each, summed in registers over all queries that see
// them. Tiles are transposed, keys by queries, so that P and dS come out of the accumulators as the
// left operands of the sums. A step (Algorithm 3 of the paper, S one block ahead):
//
//   dP = V dO^T         beside   dV += P dO
//   dS = P (dP - Delta) under dV; dS goes to warpgroup 0 through shared memory
//   S  = K Q'^T         beside   dK += dS Q        Q' of the next query block
//   P  = 2^(S - LSE)    under dK
//
// P, dP and dS stand for their transposes throughout. Next: store_keys.cuh.
#pragma once

#include "engine/cuda/mask/bit_mask.cuh"
#include "engine/hopper/backward/backward_smem.cuh"
#include "engine/hopper/backward/score_tile.cuh"
#ifdef FA3_SCORE_FUNCTION
#include "engine/hopper/backward/function_tile.cuh"
#endif
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
        first_key_(work.first_key() + warpgroup * kRowsPerWarpgroup),
        unmasked_(unmasked_queries(work.extents(), first_key_, kRowsPerWarpgroup)),
        dropout_(params.dropout, first_key_, at.dropout_bits(warpgroup),
                 int(BackwardBarrier::kDraws) + warpgroup) {}

  __device__ __forceinline__ void run() {
    float dk[C.head_dim / 2] = {};
    float dv[C.head_dim_v / 2] = {};
    if (work_.num_steps() > 0) sum(dk, dv);
    // Asked at run time: in a kernel with add() alone the compiler serialises the products.
    if (C.splits_heads && params_.order.head_splits > 1) {
      add(dk, dv);
    } else {
      store(dk, dv);
    }
  }

 private:
  using Tile = ScoreTile<C>;
  using Cursor = PipelineState<C.stages>;
  using Block = typename KeyBlockWork<C>::Block;
  static_assert(C.dk_tile().bytes() <= C.q_tile().bytes() &&
                C.dv_tile().bytes() <= C.d_o_tile().bytes());
  static_assert(C.key_warpgroups() <= C.stages && C.key_warpgroups() <= C.ds_stages);

  __device__ __forceinline__ void add(float (&dk)[C.head_dim / 2], float (&dv)[C.head_dim_v / 2]) {
    const int64_t block = dkv_block(params_);
    const DkvAccum& accum = params_.dkv_accum;
    const int rows = int(thread_in_block()) / kWarpgroupSize - int(BackwardWarpgroup::kFirstKey);
    add_gradient<C.dk_accum()>(accum.dk + block * C.dk_accum().block_floats(), rows, dk,
                               work_.scale());
    add_gradient<C.dv_accum()>(accum.dv + block * C.dv_accum().block_floats(), rows, dv,
                               value_scale<C>(params_));
  }

  __device__ __forceinline__ void store(const float (&dk)[C.head_dim / 2],
                                        const float (&dv)[C.head_dim_v / 2]) {
    keys_done(warpgroup_);
    store_gradient<C.element, C.dk_tile()>(at_.q(warpgroup_), dk, work_.scale());
    store_gradient<C.element, C.dv_tile()>(at_.d_o(warpgroup_), dv, value_scale<C>(params_));
    ptx::fence_proxy_async();
    ptx::bar_sync(int(BackwardBarrier::kStore) + warpgroup_, kWarpgroupSize);
    if (!stores()) return;
    const ptx::TileCoordinates to = work_.gradients(first_key_);
    copy_gradient<C.dk_tile(), C.general()>(params_.dk_map, params_.columns, at_.q(warpgroup_), to);
    copy_gradient<C.dv_tile(), C.general()>(params_.dv_map, params_.columns_v, at_.d_o(warpgroup_),
                                            to);
    finish_copies();
  }

  __device__ __forceinline__ void sum(float (&dk)[C.head_dim / 2], float (&dv)[C.head_dim_v / 2]) {
    const auto steps = work_.steps();
    const int num_steps = work_.num_steps();
    Block block = work_.first_queries();
    // Carried as floats and packed at the loop's top: with packed ones carried over the back edge
    // the compiler serialises the products.
    typename Tile::Scores p;
    first_p(p, block);
    at_.v_once().wait_full({});
    at_.d_o_pipeline().wait_full(cursor_);
    for (int step = 1;; ++step) {
      const bool last = step == num_steps;
      typename Tile::Packed ds;
      score_gradient(ds, p, dv, block);
      if (!last) at_.q_pipeline().wait_full(cursor_.next());
      Tile::move(ds, ds, params_.zero);
      if (last) {
        last_key_gradient(dk, ds);
        return;
      }
      block.advance(steps);
      next_p(p, block, dk, ds);
      cursor_.advance();
    }
  }

  __device__ __forceinline__ void first_p(typename Tile::Scores& p, Block block) {
    at_.k_once().wait_full({});
    at_.q_pipeline().wait_full(cursor_);
    typename Tile::Lse lse;
    Tile::read(lse, at_.lse(cursor_.stage()));
    ptx::wgmma_fence();
    issue_scores(p, cursor_.stage());
    ptx::wgmma_commit_group();
    draw(block);
    ptx::wgmma_wait_group<0>();
    exponentiate(p, lse, block);
  }

  // dS = P (dP - Delta), under dV += P dO. `p` comes in as P and leaves as dS.
  __device__ __forceinline__ void score_gradient(typename Tile::Packed& packed,
                                                 typename Tile::Scores& p,
                                                 float (&dv)[C.head_dim_v / 2], Block block) {
    const uint32_t stage = cursor_.stage();
    Tile::pack_kept(packed, p, at_.p(warpgroup_));
    ptx::wgmma_fence();
    tile::issue_abt<C.element, C.v_tile(), C.d_o_tile()>(
        p, tile::k_major_low(at_.v() + warpgroup_ * kRowsPerWarpgroup * C.v_tile().row_bytes()),
        tile::k_major_low(at_.d_o(stage)));
    ptx::wgmma_commit_group();
    tile::issue_ab<C.element, C.d_o_tile()>(dv, packed,
                                            tile::mn_major_low(C.d_o_tile(), at_.d_o(stage)));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>();
    typename Tile::Statistics delta;
    Tile::read(delta, at_.delta(stage));
    if constexpr (kHasScoreFunction) {
      FunctionTile<C>::differentiate(p, packed, delta, params_, place_of(block), at_.p(warpgroup_));
    } else if constexpr (C.has_other_p()) {
      Tile::differentiate(p, at_.p(warpgroup_), delta, dropout_);
    } else {
      Tile::differentiate(p, packed, delta, dropout_);
    }
    at_.ds_pipeline().wait_empty(ds_cursor_);
    Tile::pack(packed, p);
    hand_over(packed);
    ptx::wgmma_wait_group<0>();
  }

  // dS to warpgroup 0.
  __device__ __forceinline__ void hand_over(const typename Tile::Packed& ds) {
    Tile::store_transposed(at_.ds(ds_cursor_.stage()), warpgroup_ * kRowsPerWarpgroup, ds);
    ptx::fence_proxy_async();
    __syncwarp();
    if (is_lane_0()) ptx::mbarrier_arrive(at_.ds_pipeline().full(ds_cursor_.stage()));
    ds_cursor_.advance();
  }

  // The next block's P, under dK += dS Q.
  __device__ __forceinline__ void next_p(typename Tile::Scores& p, Block block,
                                         float (&dk)[C.head_dim / 2],
                                         const typename Tile::Packed& ds) {
    const Cursor next = cursor_.next();
    ptx::wgmma_fence();
    issue_scores(p, next.stage());
    ptx::wgmma_commit_group();
    tile::issue_ab<C.element, C.q_tile()>(dk, ds,
                                          tile::mn_major_low(C.q_tile(), at_.q(cursor_.stage())));
    ptx::wgmma_commit_group();
    draw(block);
    ptx::wgmma_wait_group<1>();
    typename Tile::Lse lse;  // read only now: held under the product, 3% slower
    Tile::read(lse, at_.lse(next.stage()));
    exponentiate(p, lse, block);
    at_.d_o_pipeline().wait_full(next);
    ptx::wgmma_wait_group<0>();
  }

  __device__ __forceinline__ void last_key_gradient(float (&dk)[C.head_dim / 2],
                                                    const typename Tile::Packed& ds) {
    ptx::wgmma_fence();
    tile::issue_ab<C.element, C.q_tile()>(dk, ds,
                                          tile::mn_major_low(C.q_tile(), at_.q(cursor_.stage())));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
  }

  __device__ __forceinline__ void issue_scores(typename Tile::Scores& scores, uint32_t stage) {
    tile::issue_abt<C.element, C.k_tile(), C.q_tile()>(
        scores,
        tile::k_major_low(at_.k() + warpgroup_ * kRowsPerWarpgroup * C.k_tile().row_bytes()),
        tile::k_major_low(at_.q(stage)));
  }

  __device__ __forceinline__ void exponentiate(typename Tile::Scores& scores,
                                               const typename Tile::Lse& lse, Block block) {
    const auto score = Tile::score_of(params_);
    if constexpr (kHasScoreFunction) {
      const uint32_t slopes = at_.p(warpgroup_);
      FunctionTile<C>::prepare(scores, params_, place_of(block), slopes);
      hide(scores, block);
      FunctionTile<C>::exponentiate(scores, lse, score, slopes);
    } else {
      score.prepare(scores);
      hide(scores, block);
      Tile::exponentiate(scores, lse, score, at_.p(warpgroup_), dropout_);
    }
  }
  __device__ __forceinline__ TilePlace place_of(Block block) const {
    return {work_.sequence(), block.head, first_key_, block.m_block * C.block_m};
  }

  __device__ __forceinline__ void hide(typename Tile::Scores& scores, Block block) {
    if constexpr (C.block_mask) {
      const uint32_t* const bits = work_.at(block).bits;
      if (bits) {
        hide_transposed(scores, bits, warpgroup_ * kRowsPerWarpgroup,
                        int(thread_in_block() % kWarpgroupSize));
      }
    } else {
      const int first_row = block.m_block * C.block_m;
      if (Tile::is_masked(unmasked_, first_row)) {
        Tile::mask(scores, work_.extents(), first_key_, first_row);
      }
    }
  }
  __device__ __forceinline__ void draw(Block block) {
    if constexpr (C.dropout) {
      dropout_.draw(work_.sequence(), block.head, block.m_block * C.block_m);
    }
  }

  __device__ __forceinline__ bool is_lane_0() const { return threadIdx.x % kWarpSize == 0; }

  const BackwardParams& params_;
  const BackwardAddresses<C> at_;
  const KeyBlockWork<C>& work_;
  const int warpgroup_;
  const int first_key_;
  const KeyRangeOf<int> unmasked_;  // queries that see all keys of this warpgroup
  [[no_unique_address]] typename Tile::DropoutHook dropout_;
  Cursor cursor_;
  PipelineState<C.ds_stages> ds_cursor_;
};

}  // namespace fa3::hopper
