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
#include "engine/hopper/backward/key_block_walk.cuh"
#include "engine/hopper/backward/scores/score_tile.cuh"
#ifdef FA3_SCORE_FUNCTION
#include "engine/hopper/backward/scores/function_tile.cuh"
#endif
#include "engine/hopper/backward/store_keys.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/gemm.cuh"
#include "engine/hopper/tile/gemm_transposed.cuh"

namespace fa3::hopper {

template <BackwardConfig C>
class KeyGradients {
 public:
  __device__ __forceinline__ KeyGradients(const BackwardParams& params, BackwardAddresses<C> at,
                                          const KeyBlockWork<C>& work, int warpgroup)
      : params_(params),
        at_(at),
        work_(first_key_block<C>(work)),
        warpgroup_(warpgroup),
        first_key_(work_.first_key() + warpgroup * kRowsPerWarpgroup),
        unmasked_(unmasked_queries(work_.extents(), first_key_, kRowsPerWarpgroup)),
        dropout_(params.dropout, first_key_, at.dropout_bits(warpgroup),
                 int(BackwardBarrier::kDraws) + warpgroup) {}

  __device__ __forceinline__ void run() {
    do {
      run_key_block();
    } while (next_key_block());
    if (C.persistent() && stores()) ptx::cp_async_bulk_wait_group_read<0>();
  }

 private:
  using Tile = ScoreTile<C>;
  using Cursor = PipelineState<C.shape.stages>;
  using Block = typename KeyBlockWork<C>::Block;
  // Where store_dk() finds room for dK.
  static constexpr bool kFitsStage = C.dk_tile().bytes() <= C.q_tile().bytes();
  static_assert(C.has_long_sums() ? C.key_warpgroups() * C.dk_tile().bytes() <=
                                        C.shape.stages * C.q_tile().bytes()
                                  : kFitsStage && C.dv_tile().bytes() <= C.d_o_tile().bytes());
  static_assert(C.key_warpgroups() <= C.shape.stages && C.key_warpgroups() <= C.shape.ds_stages);
  static_assert(!C.persistent() ||
                C.dv_tile().bytes() + C.dk_tile().bytes() <= C.ds_tile().slab_bytes());

  // A persistent CTA goes on.
  __device__ __forceinline__ bool next_key_block() {
    if constexpr (C.persistent()) {
      if (work_.num_steps() > 0) cursor_.advance();
      if (!walk_.advance(at_, work_)) return false;
      first_key_ = work_.first_key() + warpgroup_ * kRowsPerWarpgroup;
      unmasked_ = unmasked_queries(work_.extents(), first_key_, kRowsPerWarpgroup);
      return true;
    } else {
      return false;
    }
  }

  __device__ __forceinline__ void run_key_block() {
    float dk[C.shape.head_dim / 2] = {};
    float dv[C.shape.head_dim_v / 2] = {};
    if (work_.num_steps() > 0) {
      sum(dk, dv);
    } else if (!C.stores_together() && leave_as_tiles()) {
      if constexpr (C.persistent()) {
        if (walk_.is_at_first()) walk_.wait_for_k(at_);  // no phase of a barrier may be missed
        wait_for_copies();
      }
      store_dv(dv);
    }
    if constexpr (C.stores_together()) {
      store_together(dk, dv);
    } else if (leave_as_tiles()) {
      store_dk(dk);
    } else if (C.splits_steps() && params_.order.step_splits > 1) {
      add(dk, dv);
    } else {
      store_wide(dk, dv);
    }
  }

  __device__ __forceinline__ void add(float (&dk)[C.shape.head_dim / 2],
                                      float (&dv)[C.shape.head_dim_v / 2]) {
    const int64_t block = dkv_block<C>(params_);
    const DkvAccum& accum = params_.dkv_accum;
    const int rows = int(thread_in_block()) / kWarpgroupSize - int(BackwardWarpgroup::kFirstKey);
    add_gradient<C.dk_accum()>(accum.dk + block * C.dk_accum().block_floats(), rows, dk,
                               work_.scale());
    add_gradient<C.dv_accum()>(accum.dv + block * C.dv_accum().block_floats(), rows, dv,
                               value_scale<C>(params_));
  }

  // Asked at run time: in a kernel where dK and dV never leave as tiles the compiler serialises the
  // products. So the kernels with float32 gradients have both ways, behind a number that is always
  // 0.
  __device__ __forceinline__ bool leave_as_tiles() const {
    if (C.splits_steps() && params_.order.step_splits > 1) return false;
    return !C.wide() || params_.zero != 0;
  }

  __device__ __forceinline__ void store_together(const float (&dk)[C.shape.head_dim / 2],
                                                 const float (&dv)[C.shape.head_dim_v / 2]) {
    static_assert(!C.persistent() && !C.wide() && !C.splits_steps());
    keys_done(warpgroup_);
    store_gradient<C.element, C.dk_tile()>(at_.q(warpgroup_), dk, work_.scale());
    store_gradient<C.element, C.dv_tile()>(at_.d_o(warpgroup_), dv, value_scale<C>(params_));
    ptx::fence_proxy_async();
    sync_warpgroup();
    if (!stores()) return;
    const auto to = work_.gradients(first_key_);
    copy_gradient<C.dk_tile(), C.general(), C.dk_tile().slab_bytes()>(
        params_.dk_map, params_.columns, at_.q(warpgroup_), to);
    copy_gradient<C.dv_tile(), C.general(), C.dv_tile().slab_bytes()>(
        params_.dv_map, params_.columns_v, at_.d_o(warpgroup_), to);
    finish_copies();
  }

  // dV goes to this warpgroup's rows of V, which no other reads; of a persistent CTA, whose next V
  // comes, to this warpgroup's slab of a dS that dQ's warpgroup has released.
  __device__ __forceinline__ void store_dv(const float (&dv)[C.shape.head_dim_v / 2]) {
    if constexpr (C.persistent()) {
      at_.ds_pipeline().wait_empty(ds_cursor_);
      store_gradient<C.element, C.dv_tile()>(own_slab(), dv, value_scale<C>(params_));
      copy<C.dv_tile(), C.dv_tile().slab_bytes()>(params_.dv_map, params_.columns_v, own_slab());
      return;
    }
    const uint32_t rows = at_.v() + warpgroup_ * kRowsPerWarpgroup * C.v_tile().row_bytes();
    sync_warpgroup();  // all of its products with V are over
    store_gradient<C.element, C.v_tile()>(rows, dv, value_scale<C>(params_));
    copy<C.dv_tile(), C.v_tile().slab_bytes()>(params_.dv_map, params_.columns_v, rows);
  }

  // dK goes to the stage behind the last step's, if that is free for certain: this warpgroup has
  // handed over the last dS, so the other, at most C.shape.ds_stages behind, reads no earlier
  // stage.
  __device__ __forceinline__ void store_dk(const float (&dk)[C.shape.head_dim / 2]) {
    uint32_t tile = at_.q(warpgroup_);
    if constexpr (C.persistent()) {
      tile = own_slab() + C.dv_tile().bytes();
    } else if constexpr (!kFitsStage) {
      keys_done(warpgroup_);
      tile = at_.q(0) + warpgroup_ * C.dk_tile().bytes();
    } else if constexpr (C.shape.stages >= C.shape.ds_stages + 2) {
      const uint32_t stage = uint32_t(work_.num_steps()) % C.shape.stages;
      tile = warpgroup_ == 0 ? at_.q(stage) : at_.d_o(stage);
    } else {
      keys_done(warpgroup_);
    }
    store_gradient<C.element, C.dk_tile()>(tile, dk, work_.scale());
    copy<C.dk_tile(), C.dk_tile().slab_bytes()>(params_.dk_map, params_.columns, tile);
    if (!stores()) return;
    if constexpr (C.persistent()) {
      ptx::cp_async_bulk_commit_group();
      at_.k_pipeline().release(walk_.k_stage());
    } else {
      finish_copies();
    }
  }

  // Where this warpgroup stores its keys' columns of the next dS, or has those of dK's product.
  __device__ __forceinline__ uint32_t own_slab() const {
    static_assert(C.ds_tile().slab_columns() == kRowsPerWarpgroup);
    return at_.ds(ds_cursor_.stage()) + warpgroup_ * C.ds_tile().slab_bytes();
  }
  // The key block before has left it.
  __device__ __forceinline__ void wait_for_copies() const {
    if (walk_.is_at_first()) return;
    if (stores()) ptx::cp_async_bulk_wait_group_read<0>();
    sync_warpgroup();
  }

  template <tile::TileLayout Layout, int SlabBytes>
  __device__ __forceinline__ void copy(const CUtensorMap& map, int columns, uint32_t smem) {
    ptx::fence_proxy_async();
    sync_warpgroup();
    if (!stores()) return;
    copy_gradient<Layout, C.general(), SlabBytes>(map, columns, smem, work_.gradients(first_key_));
  }

  __device__ __forceinline__ void sync_warpgroup() const {
    ptx::bar_sync(int(BackwardBarrier::kStore) + warpgroup_, kWarpgroupSize);
  }

  __device__ __forceinline__ void store_wide(const float (&dk)[C.shape.head_dim / 2],
                                             const float (&dv)[C.shape.head_dim_v / 2]) {
    if constexpr (C.wide()) {
      const auto& wide = static_cast<const WideBackwardParams&>(params_);
      const ptx::TileCoordinates place = work_.gradients(first_key_);
      store_wide_gradient<C>(wide, wide.dk, place, dk, work_.scale());
      store_wide_gradient<C>(wide, wide.dv, place, dv, value_scale<C>(params_));
    }
  }

  __device__ __forceinline__ void sum(float (&dk)[C.shape.head_dim / 2],
                                      float (&dv)[C.shape.head_dim_v / 2]) {
    const auto steps = work_.steps();
    int num_steps = work_.num_steps();
    Block block = work_.first_queries();
    const Unseen unseen = unseen_steps();
    if (unseen.first) {
      at_.q_pipeline().wait_full(cursor_);  // a phase that nobody waits for looks like the next one
      at_.d_o_pipeline().wait_full(d_o_cursor(cursor_));
      hand_over_zeros();
      cursor_.advance();
      block.advance(steps);
      --num_steps;
    }
    num_steps -= unseen.last;
    // Carried as floats and packed at the loop's top: with packed ones carried over the back edge
    // the compiler serialises the products.
    typename Tile::Scores p;
    first_p(p, block);
    if constexpr (C.persistent()) wait_for_copies();
    walk_.wait_for_v(at_, work_);
    at_.d_o_pipeline().wait_full(d_o_cursor(cursor_));
    for (int step = 1;; ++step) {
      const bool last = step == num_steps;
      typename Tile::Packed ds;
      score_gradient(ds, p, dv, block);
      if (!last) wait_for_queries(cursor_.next());
      Tile::move(ds, ds, params_.zero);
      if (last) {
        last_key_gradient(dk, ds, dv, unseen.last);
        return;
      }
      block.advance(steps);
      next_p(p, block, dk, ds);
      cursor_.advance();
    }
  }

  // And for captured elements of their scores, in the stage of their dS: the compiler serialises
  // products if that is waited for under them.
  __device__ __forceinline__ void wait_for_queries(Cursor queries) const {
    at_.q_pipeline().wait_full(queries);
    if constexpr (kLoadsTile) at_.captured_pipeline().wait_full(ds_cursor_);
  }

  __device__ __forceinline__ void first_p(typename Tile::Scores& p, Block block) {
    if (walk_.is_at_first()) walk_.wait_for_k(at_);
    wait_for_queries(cursor_);
    typename Tile::Lse lse;
    Tile::read(lse, at_.lse(cursor_.stage()));
    ptx::wgmma_fence();
    issue_scores(p, cursor_.stage());
    ptx::wgmma_commit_group();
    draw(block);
    ptx::wgmma_wait_group<0>();
    exponentiate(p, lse, block);
  }

  // dS = P (dP - Delta), under dV += P dO. `p` comes in as P and leaves as dS. The next block's
  // draws are made first, while the other warpgroups multiply; nobody reads those behind the last
  // block.
  __device__ __forceinline__ void score_gradient(typename Tile::Packed& packed,
                                                 typename Tile::Scores& p,
                                                 float (&dv)[C.shape.head_dim_v / 2], Block block) {
    const uint32_t stage = d_o_cursor(cursor_).stage();
    [[maybe_unused]] typename Tile::Packed signed_p;
    [[maybe_unused]] typename Tile::Dropped dropped;
    if constexpr (C.signs_p()) dropout_.exchange(dropped);
    [[maybe_unused]] const Block here = block;
    if constexpr (C.dropout()) {
      block.advance(work_.steps());
      draw(block);
    }
    if constexpr (C.signs_p()) {
      Tile::pack_signed(signed_p, p, dropped);
      Tile::keep_positive(packed, signed_p);
    } else {
      Tile::pack_kept(packed, p, at_.p(warpgroup_));
    }
    ptx::wgmma_fence();
    tile::issue_abt<C.element, C.v_tile(), C.d_o_tile()>(
        p, tile::k_major_low(at_.in_cta(at_.v()) + first_row_bytes(C.v_tile())),
        tile::k_major_low(at_.in_cta(at_.d_o(stage))));
    ptx::wgmma_commit_group();
    tile::issue_ab<C.element, C.d_o_tile()>(
        dv, packed, tile::mn_major_low(C.d_o_tile(), at_.in_cta(at_.d_o(stage))));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>();
    typename Tile::Delta delta;
    Tile::read(delta, at_.delta(stage));
    if constexpr (kHasScoreFunction) {
      FunctionTile<C>::differentiate(p, C.signs_p() ? signed_p : packed, delta, params_,
                                     place_of(here), at_.p(warpgroup_));
    } else if constexpr (C.signs_p()) {
      Tile::differentiate(p, signed_p, delta, dropout_);
    } else if constexpr (C.keeps_p()) {
      Tile::differentiate(p, at_.p(warpgroup_), delta, dropout_);
    } else {
      Tile::differentiate(p, packed, delta, dropout_);
    }
    at_.ds_pipeline().wait_empty(ds_cursor_);
    Tile::pack(packed, p);
    hand_over(packed);
    ptx::wgmma_wait_group<0>();
    if (C.d_o_goes_with_ds() && is_lane_0()) at_.d_o_pipeline().release(stage);
  }

  // dS to warpgroup 0. dK's product moves the cursor on where it finds dS there, too.
  __device__ __forceinline__ void hand_over(const typename Tile::Packed& ds) {
    Tile::store_transposed(at_.ds(ds_cursor_.stage()), warpgroup_ * kRowsPerWarpgroup, ds);
    ptx::fence_proxy_async();
    __syncwarp();
    if (is_lane_0()) ptx::mbarrier_arrive(at_.ds_pipeline().full(ds_cursor_.stage()));
    if constexpr (!C.has_long_sums()) ds_cursor_.advance();
  }

  // Whether the queries of the first step, or of the last, see none of these keys, though others
  // do. Such a step is the other warpgroup's alone: under a window of 128 keys it is one of four.
  // Not in dense kernels, whose products the compiler then serialises, nor with a softcap, dropout
  // or a score function, where registers do not last.
  struct Unseen {
    bool first;
    bool last;
  };
  __device__ __forceinline__ Unseen unseen_steps() const {
    if constexpr (C.leaves_out_steps() && !kHasScoreFunction) {
      const QuerySteps all = work_.steps();
      const QuerySteps seen =
          query_steps(work_.extents(), first_key_, kRowsPerWarpgroup, C.shape.block_m);
      if (seen.per_head() == 0) return {false, false};
      return {seen.first_block > all.first_block, seen.end_block < all.end_block};
    } else {
      return {false, false};
    }
  }

  __device__ __forceinline__ void hand_over_zeros() {
    const typename Tile::Packed zeros = {};
    at_.ds_pipeline().wait_empty(ds_cursor_);
    hand_over(zeros);
  }

  // The next block's P, under dK += dS Q.
  __device__ __forceinline__ void next_p(typename Tile::Scores& p, Block block,
                                         float (&dk)[C.shape.head_dim / 2],
                                         const typename Tile::Packed& ds) {
    const Cursor next = cursor_.next();
    ptx::wgmma_fence();
    issue_scores(p, next.stage());
    ptx::wgmma_commit_group();
    issue_dk(dk, ds);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<1>();
    typename Tile::Lse lse;  // read only now: held under the product, 3% slower
    Tile::read(lse, at_.lse(next.stage()));
    exponentiate(p, lse, block);
    at_.d_o_pipeline().wait_full(d_o_cursor(next));
    ptx::wgmma_wait_group<0>();
  }

  // dV leaves under it.
  __device__ __forceinline__ void last_key_gradient(float (&dk)[C.shape.head_dim / 2],
                                                    const typename Tile::Packed& ds,
                                                    const float (&dv)[C.shape.head_dim_v / 2],
                                                    bool last_is_unseen) {
    ptx::wgmma_fence();
    issue_dk(dk, ds);
    ptx::wgmma_commit_group();
    if (last_is_unseen) hand_over_zeros();
    if (!C.stores_together() && leave_as_tiles()) store_dv(dv);
    ptx::wgmma_wait_group<0>();
  }

  __device__ __forceinline__ void issue_scores(typename Tile::Scores& scores, uint32_t stage) {
    uint32_t k =
        tile::k_major_low(at_.in_cta(at_.k(walk_.k_stage())) + first_row_bytes(C.k_tile()));
    // Without that the compiler keeps descriptors of all steps of the sum, and spills registers.
    if constexpr (C.has_long_sums()) k = uniform(k);
    tile::issue_abt<C.element, C.k_tile(), C.q_tile()>(scores, k,
                                                       tile::k_major_low(at_.in_cta(at_.q(stage))));
  }

  __device__ __forceinline__ void issue_dk(float (&dk)[C.shape.head_dim / 2],
                                           const typename Tile::Packed& ds) {
    const uint32_t q = tile::mn_major_low(C.q_tile(), at_.in_cta(at_.q(cursor_.stage())));
    if constexpr (C.has_long_sums()) {
      sync_warpgroup();  // all of it have stored dS
      tile::issue_atb<C.element, C.ds_tile(), C.q_tile()>(
          dk, tile::mn_major_low(C.ds_tile(), own_slab()), q);
      ds_cursor_.advance();
    } else {
      tile::issue_ab<C.element, C.q_tile()>(dk, ds, q);
    }
  }

  __device__ __forceinline__ void exponentiate(typename Tile::Scores& scores,
                                               const typename Tile::Lse& lse, Block block) {
    const auto score = Tile::score_of(params_);
    if constexpr (kHasScoreFunction) {
      const uint32_t slopes = at_.p(warpgroup_);
      FunctionTile<C>::prepare(scores, params_, place_of(block), slopes,
                               captured_tile(at_.ds(ds_cursor_.stage())));
      hide(scores, block);
      FunctionTile<C>::exponentiate(scores, lse, score, slopes);
    } else {
      score.prepare(scores);
      hide(scores, block);
      Tile::exponentiate(scores, lse, score, at_.p(warpgroup_), dropout_);
    }
  }
  __device__ __forceinline__ uint32_t captured_tile(uint32_t stage) const {
    return FunctionTile<C>::captured_tile(stage, warpgroup_ * kRowsPerWarpgroup);
  }
  __device__ __forceinline__ TilePlace place_of(Block block) const {
    return {work_.sequence(), block.head, first_key_, block.m_block * C.shape.block_m};
  }

  __device__ __forceinline__ void hide(typename Tile::Scores& scores, Block block) {
    if constexpr (C.block_mask()) {
      const uint32_t* const bits = work_.at(block).bits;
      if (bits) {
        hide_transposed(scores, bits, warpgroup_ * kRowsPerWarpgroup,
                        int(thread_in_block() % kWarpgroupSize));
      }
    } else {
      const int first_row = block.m_block * C.shape.block_m;
      if (Tile::is_masked(unmasked_, first_row)) {
        Tile::mask(scores, work_.extents(), first_key_, first_row);
      }
    }
  }
  __device__ __forceinline__ void draw(Block block) {
    if constexpr (C.dropout()) {
      dropout_.draw(work_.sequence(), block.head, block.m_block * C.shape.block_m);
    }
  }

  // Where the warpgroup's keys begin in a tile.
  __device__ __forceinline__ int first_row_bytes(tile::TileLayout keys) const {
    return warpgroup_ * kRowsPerWarpgroup * keys.row_bytes();
  }

  // Where the dO of a step lies that has `queries` and whose dS has not been handed over.
  __device__ __forceinline__ auto d_o_cursor(Cursor queries) const {
    if constexpr (C.d_o_goes_with_ds()) {
      return ds_cursor_;
    } else {
      return queries;
    }
  }

  __device__ __forceinline__ bool is_lane_0() const { return threadIdx.x % kWarpSize == 0; }

  const BackwardParams& params_;
  const BackwardAddresses<C> at_;
  OwnKeyBlock<C> work_;
  KeyBlockWalk<C> walk_;
  const int warpgroup_;
  int first_key_;
  KeyRangeOf<int> unmasked_;  // queries that see all keys of this warpgroup
  [[no_unique_address]] typename Tile::DropoutHook dropout_;
  Cursor cursor_;
  PipelineState<C.shape.ds_stages> ds_cursor_;
};

}  // namespace fa3::hopper
