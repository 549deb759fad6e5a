// SPDX-License-Identifier: Apache-2.0
// A consumer warpgroup's two products, S = Q K^T and O += P V, between its turns of ping-pong.
// Next: mainloop.cuh.
#pragma once

#include "engine/hopper/forward/consumer/consumer_state.cuh"
#include "engine/hopper/forward/consumer/staged_rows.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

template <Kernel C>
using KvState = typename ConsumerStages<C>::KvState;

// Before the warpgroup's turn: scores begin with what the score function adds to them, and Q K^T is
// added to that. So this runs under the other warpgroups' products.
template <Kernel C>
__device__ __forceinline__ void start_scores(ConsumerState<C>& c, ThreadTile<C>& r) {
  if constexpr (kAddsToScore) {
    const WorkTileOf<C>& work = c.work_tile();
    const int first_row = c.first_row_of(work), first_key = c.tile.first_key();
    if constexpr (kLoadsTile) {
      const uint32_t tile = c.stages.at().captured(c.stages.wait_for_captured());
      c.score.template start_by_tile<C>(r.scores, tile, c.warp(), c.params, work, first_row,
                                        first_key);
      c.stages.release_captured();
    } else if constexpr (kAddsKeyTerm) {
      c.stages.wait_for_key_terms();  // which issue_scores() multiplies
    } else if constexpr (kAddsLines) {
      c.score.start(r.scores, c.added_lines(), c.lines_meet(), work, first_key);
    } else {
      c.score.start(r.scores, c.params, work, first_row, first_key);
    }
  }
}

// Scores begin with the terms of their keys.
template <Kernel C>
__device__ __forceinline__ void issue_key_terms(const ConsumerState<C>& c, ThreadTile<C>& r) {
  const SmemAddresses<C> at = c.stages.at();
  const uint32_t zeros = at.key_term_zeros();
  ptx::wgmma_m64k16_ss<Element::kBf16, Major::kK, Major::kK>(
      r.scores, ones_descriptor(at.key_term_ones(), zeros),
      key_term_descriptor(uniform(at.key_terms(c.stages.key_terms())), zeros), false);
}

template <Kernel C>
__device__ __forceinline__ void issue_scores(const ConsumerState<C>& c, ThreadTile<C>& r,
                                             uint32_t q, uint32_t k) {
  if constexpr (kAddsKeyTerm) issue_key_terms(c, r);
  tile::issue_abt<C.types().product, C.tiles_in_smem().q, C.tiles_in_smem().k>(r.scores, q, k,
                                                                               kAddsToScore);
  ptx::wgmma_commit_group();
}

// Once the block's scores are there.
template <Kernel C>
__device__ __forceinline__ void release_key_terms(ConsumerState<C>& c) {
  if constexpr (kAddsKeyTerm) c.stages.release_key_terms();
}

template <Kernel C>
__device__ __forceinline__ void issue_output(ConsumerState<C>& c, ThreadTile<C>& r, uint32_t v) {
  if constexpr (C.e4m3()) {
    tile::issue_abt<C.tiles_in_smem().v>(r.output, r.p, v, !c.output_starts);
  } else {
    tile::issue_ab<C.types().product, C.tiles_in_smem().v>(r.output, r.p, v, !c.output_starts);
  }
  ptx::wgmma_commit_group();
  c.output_starts = false;
}

// The newest part of O joins the earlier ones.
template <Kernel C>
__device__ __forceinline__ void promote_output(ConsumerState<C>& c, ThreadTile<C>& r) {
  if constexpr (C.e4m3()) {
    if constexpr (consumer_tuning(C).stages_rows) StagedRows<C>::wait();
    const bool starts = c.promoted.promote(r.output, r.rows, c.promoted_sum_address());
    if (starts) c.output_starts = true;
  }
}

// The draws for the block's P. Early ones are made before the warp waits for its K and its turn:
// the other warpgroup's products run. Behind the turn's beginning they would hold up both.
template <Kernel C>
__device__ __forceinline__ void draw(const ConsumerState<C>& c, ThreadTile<C>& r) {
  if constexpr (C.dropout()) {
    const uint32_t base = ptx::ld_shared_b32(ptx::cvta_to_shared(&c.work_tile().first_key));
    c.dropout.call(r.draws, int(base) + c.tile.first_key());
  }
}

// Both products of a step: the block's scores, and P V of the block before. Promotes: a part of O
// ends here, and joins the earlier ones while Q K^T runs.
template <bool Promotes, Kernel C>
__device__ __forceinline__ void issue_products(ConsumerState<C>& c, ThreadTile<C>& r, KvState<C> k,
                                               KvState<C> v) {
  const uint32_t q_low = c.stages.q_operand();
  const uint32_t k_low = c.stages.k_operand(k);
  const uint32_t v_low = c.stages.v_operand(v);
  start_scores(c, r);
  c.ping_pong.wait();
  ptx::wgmma_fence();
  issue_scores(c, r, q_low, k_low);
  if constexpr (Promotes) {
    promote_output(c, r);
    ptx::wgmma_fence();
  }
  issue_output(c, r, v_low);
  c.ping_pong.pass();
}

// Afterwards O and P may be touched again, and V loaded over.
template <Kernel C>
__device__ __forceinline__ void wait_for_output(const ConsumerState<C>& c, KvState<C> v) {
  ptx::wgmma_wait_group<0>();
  c.stages.release_kv(v);
}

// cp.async writes through the generic proxy, products read through the async proxy. The threads
// that copy do not wait for their copies, so they cannot fence behind them; but a fence anywhere on
// the way from a write to its reader orders the two (PTX ISA, "causality order"), and the stage's
// barrier, which this thread has just waited for, is on that way.
template <Kernel C>
__device__ __forceinline__ void fence_cp_async(const ConsumerState<C>& c) {
  if (uses_cp_async<C>(c.params)) ptx::fence_proxy_async();
}

}  // namespace fa3::hopper
