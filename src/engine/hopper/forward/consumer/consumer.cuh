// SPDX-License-Identifier: Apache-2.0
// The consumer: one warpgroup, from its first tile to its last. Its main loop is the paper's
// Algorithm 2, for the 64 query rows that it has of each tile; comments name the lines. The
// tutorial (tutorial/plain_kernel.cuh) is the same loop without policies.
//
// The pipeline of K and V carries, for each key block, its K and then the V of the block before it:
// what a step multiplies. A step issues S = Q K^T of its block and O += P V of the block before,
// and computes the softmax of S while P V runs. Steps run on across tiles: the last P V of a tile
// shares its step with the first Q K^T of the next, and the finished tile leaves in the middle of
// that step. Blocks that no row of this warpgroup sees pass by unread.
//
// c.scores, c.weights and c.sum are the kernel's policies (forward/policies/). Loops in another
// order: promoted_loop.cuh, serial_loop.cuh.
#pragma once

#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward/consumer/guard.cuh"
#include "engine/hopper/ptx/sync.cuh"

namespace fa3::hopper {

// cp.async writes through the generic proxy, products read through the async proxy. The threads
// that copy do not wait for their copies, so they cannot fence behind them; but a fence anywhere on
// the way from a write to its reader orders the two (PTX ISA, "causality order"), and the stage's
// barrier, which this thread has just waited for, is on that way.
template <Kernel C>
__device__ __forceinline__ void fence_copies(const Consumer<C>& c) {
  if (uses_cp_async<C>(c.params)) ptx::fence_proxy_async();
}

template <Kernel C>
__device__ __forceinline__ void issue_scores(const Consumer<C>& c, ThreadTile<C>& r, uint32_t q,
                                             uint32_t k) {
  c.scores.issue(c, r);
  tile::issue_abt<C.types().product, C.tiles_in_smem().q, C.tiles_in_smem().k>(r.scores, q, k,
                                                                               ScoresOf<C>::kAdds);
  ptx::wgmma_commit_group();
}

// Afterwards O and P may be touched again, and V loaded over.
template <Kernel C>
__device__ __forceinline__ void wait_for_output(const Consumer<C>& c, KvState<C> v) {
  ptx::wgmma_wait_group<0>();
  c.stages.release_kv(v);
}

// Lines 3 to 6: scores alone, for no block before has left a P to multiply.
template <Kernel C>
__device__ __forceinline__ void first_block(Consumer<C>& c, ThreadTile<C>& r) {
  const KvState<C> k = c.stages.next_kv();
  const uint32_t q_low = c.stages.q_operand();
  const uint32_t k_low = c.stages.k_operand(k);
  receive_q(c);
  c.stages.wait_for(k);  // line 3
  fence_copies(c);
  c.scores.start(c, r);
  c.ping_pong.wait();
  ptx::wgmma_fence();
  issue_scores(c, r, q_low, k_low);  // line 4
  c.ping_pong.pass();
  c.scores.read(c, k.stage());
  c.weights.read(c, r, k.stage());
  c.weights.draw_early(c, r);
  c.scores.load_ahead(c, r, c.tile.first_key());
  ptx::wgmma_wait_group<0>();
  c.stages.release_kv(k);  // line 5
  c.scores.release(c);
  release_spent_q(c);
  c.stages.release_delayed_v();
  c.stages.expect_v();
  LogitsOf<C>::start(r);
  LogitsOf<C>::see_products(c, r);
  const SeenLogits<C> seen = r;
  c.scores.finish(c, r);
  ScoreStep<C> result;
  const bool lost = weigh_online(c, r, true, result);  // line 6
  LogitsOf<C>::see_weights(r);
  if (lost) lose_scores(c, r, seen);
  r.add_sums(result);
  pack<0>(c, r);
  c.sum.start(c, r);
}

// Lines 9 and 11. Promotes: a part of O ends here, and joins the earlier ones while Q K^T runs.
template <bool Promotes, Kernel C>
__device__ __forceinline__ void issue_products(Consumer<C>& c, ThreadTile<C>& r, KvState<C> k,
                                               KvState<C> v) {
  const uint32_t q_low = c.stages.q_operand();
  const uint32_t k_low = c.stages.k_operand(k);
  const uint32_t v_low = c.stages.v_operand(v);
  c.scores.start(c, r);
  c.ping_pong.wait();
  ptx::wgmma_fence();
  issue_scores(c, r, q_low, k_low);  // S = Q K^T
  if constexpr (Promotes) {
    c.sum.promote(c, r);
    ptx::wgmma_fence();
  }
  c.sum.issue(r, v_low);  // O += P V
  c.ping_pong.pass();
}

// Lines 8 to 12. Returns once the scores are there, while P V still runs.
template <Kernel C>
__device__ __forceinline__ void multiply(Consumer<C>& c, ThreadTile<C>& r, bool starts_tile,
                                         KvState<C> k, KvState<C> v) {
  c.weights.draw_early(c, r);
  c.stages.wait_for(k, v);  // lines 8 and 10
  fence_copies(c);
  if (!starts_tile && c.sum.promotes_under(c.tile.block())) {
    issue_products<true>(c, r, k, v);
  } else {
    issue_products<false>(c, r, k, v);
  }
  c.scores.read(c, k.stage());
  c.weights.read(c, r, k.stage());
  if (starts_tile) c.scores.load_ahead(c, r, c.tile.first_key());
  ptx::wgmma_wait_group<1>();  // line 12
  c.stages.release_kv(k);      // line 15
  c.scores.release(c);
  release_spent_q(c);
}

// Lines 8 to 16.
template <Kernel C>
__device__ __forceinline__ void step(Consumer<C>& c, ThreadTile<C>& r, bool starts_tile) {
  constexpr int kEarly = early_p(C);
  const KvState<C> k = c.stages.next_kv();
  const KvState<C> v = c.stages.next_kv();
  if (starts_tile) GateOf<C>::end_tile(c, r);
  multiply(c, r, starts_tile, k, v);

  if (starts_tile) {
    LogitsOf<C>::finish(c, r);
    LogitsOf<C>::start(r);
  }
  LogitsOf<C>::see_products(c, r);
  c.scores.finish(c, r);
  const bool guarded =
      C.guarded() && LoopOf<C>::may_guard(starts_tile) && c.tile.takes_guarded_step();
  const RowState finished = r.rows;
  const SeenLogits<C> seen = r;
  ScoreStep<C> result;
  bool lost = false;
  if (guarded) {  // line 13
    guarded_step<kEarly>(r.scores, r.rows, c.scores, result, [&] {
      if constexpr (kEarly > 0) {
        LogitsOf<C>::template see_weights<0, kEarly>(r);
        wait_for_output(c, v);
        c.sum.template pack<0, kEarly>(r);
      }
    });
    LogitsOf<C>::template see_weights<kEarly>(r);
  } else {
    lost = weigh_online(c, r, starts_tile, result);
    LogitsOf<C>::rescale(r, result.rescale);
    LogitsOf<C>::see_weights(r);
    if (kEarly > 0) wait_for_output(c, v);
  }
  if (kEarly == 0) wait_for_output(c, v);  // lines 14 and 15

  // O is at rest: it moves to the new reference, or leaves if its tile is finished.
  if (guarded) {
    if (guard_fires<ScoresOf<C>>(result)) after_guard_fired(c, r, result, seen);
  } else {
    if (starts_tile) {
      c.sum.template finish<false>(c, r, finished);
      c.sum.start(c, r);
    } else {
      c.sum.rescale(r, result);
    }
    c.sum.template pack<0, kEarly>(r);
    if (lost) lose_scores(c, r, seen);
  }
  r.add_sums(result);
  pack<kEarly>(c, r);  // line 16
}

// Another warpgroup's block has passed. Its V is still to come.
template <Kernel C>
__device__ __forceinline__ void end_passed_block(Consumer<C>& c) {
  c.stages.expect_v();
  if (c.tile.is_last_block()) pass_tile(c);
}

// Another warpgroup's block.
template <Kernel C>
__device__ __forceinline__ void pass_block(Consumer<C>& c) {
  c.ping_pong.wait();
  c.ping_pong.pass();
  c.stages.release_unread(c.stages.next_kv());
  c.scores.pass_block(c);
  c.stages.release_delayed_v();
  end_passed_block(c);
}

// Lines 18 to 20: P V alone, for the next block is not this warpgroup's, or there is none.
template <Kernel C>
__device__ __forceinline__ void last_product(Consumer<C>& c, ThreadTile<C>& r, Step next) {
  if (next == Step::kOthers) {
    c.ping_pong.wait();
    c.stages.release_unread(c.stages.next_kv());
    c.scores.pass_block(c);
  }
  const KvState<C> v = c.stages.next_kv();
  const uint32_t v_low = c.stages.v_operand(v);
  GateOf<C>::end_tile(c, r);
  c.stages.wait_for(v);  // line 18
  fence_copies(c);
  ptx::wgmma_fence();
  c.sum.issue(r, v_low);  // line 19
  if (next == Step::kOthers) c.ping_pong.pass();
  wait_for_output(c, v);
  c.stages.expect_no_v();
  LogitsOf<C>::finish(c, r);
  c.sum.template finish<true>(c, r, r.rows);  // line 20
  if (next == Step::kOthers) end_passed_block(c);
}

// From the first tile to the last.
template <Kernel C>
struct OverlappedLoop {
  static constexpr bool kTracksMax = false;  // in tiles with peaked rows
  static __device__ __forceinline__ constexpr bool may_guard(bool) { return true; }

  // Line 7: from a first block on through whole tiles, to the first step that is not this
  // warpgroup's, which it leaves in `next`. The outer loop is for lost scores, whose rare code so
  // does not lie between the hot code's ends.
  static __device__ __forceinline__ void attend(Consumer<C>& c, ThreadTile<C>& r, Step& next) {
    first_block(c, r);
    for (;;) {
      while (!C.guarded() || !c.tile.scores_lost()) {
        const bool starts_tile = c.tile.is_last_block();
        if (!starts_tile) {
          c.tile.next_block();  // having begun with a tile, a warpgroup goes through with it
        } else {
          if (!start_next_tile(c, next)) return;
        }
        step(c, r, starts_tile);
      }
      recompute_block(c, r);
    }
  }

  static __device__ __forceinline__ void run(Consumer<C>& c, ThreadTile<C>& r) {
    c.ping_pong.open();
    for (;;) {
      Step next = next_step(c);
      if (next == Step::kEnd) break;
      if (next == Step::kOthers) {
        pass_block(c);
        continue;
      }
      LoopOf<C>::attend(c, r, next);
      last_product(c, r, next);
      if (next == Step::kEnd) break;
    }
    c.stages.release_delayed_v();
    c.sum.close();
    c.ping_pong.close();
  }
};

template <Kernel C>
requires(C.shape.overlaps && !C.e4m3()) struct LoopOf<C> : OverlappedLoop<C> {
};

template <Kernel C>
__device__ __forceinline__ void consume(Consumer<C>&& c) {
  ThreadTile<C> r;
  LoopOf<C>::run(c, r);
}

}  // namespace fa3::hopper
