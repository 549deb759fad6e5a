// SPDX-License-Identifier: Apache-2.0
// The consumer's main loop: the paper's Algorithm 2, for one warpgroup and its 64 query rows of
// each tile. Comments name its lines: first_block() is 3 to 6, attend() the loop of line 7, block()
// its body, 8 to 16, and last_product() is 18 to 20.
//
// The pipeline of K and V carries, for each key block, its K and then the V of the block before it:
// what a step multiplies. A step issues S = Q K^T of its block and O += P V of the block before,
// and computes the softmax of S while P V runs. Steps run on across tiles: the last P V of a tile
// shares its step with the first Q K^T of the next, and the finished tile leaves in the middle of
// that step. Blocks that no row of this warpgroup sees pass by unread. Next: max_tracking.cuh.
#pragma once

#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward/consumer/consumer_blocks.cuh"
#include "engine/hopper/forward/consumer/consumer_products.cuh"
#include "engine/hopper/forward/consumer/consumer_softmax.cuh"
#include "engine/hopper/forward/consumer/store_tile.cuh"

namespace fa3::hopper {

// Loops of steps stop behind this block or before it, where a part of O ends; at the latest behind
// the tile's last. A part that ends there too is added up where the tile is finished.
template <Kernel C>
__device__ __forceinline__ void stop_at(ConsumerState<C>& c, int block) {
  int stop = block > 0 ? block : 0;
  if constexpr (!consumer_tuning(C).promotes_under_scores) {
    const int end = c.promoted.next_end();
    if (end > stop) stop = end;
  }
  c.tile.stop_at(stop);
}

// Line 2. A tile's first product assigns O where registers allow it: no zeros to write, some 100
// clocks.
template <Kernel C>
__device__ __forceinline__ void start_output(ConsumerState<C>& c, ThreadTile<C>& r) {
  if constexpr (C.e4m3()) {
    c.output_starts = true;
    c.promoted.start(c.tile.block());
    if constexpr (consumer_tuning(C).tracks_max) stop_at(c, c.tile.blocks().online_from);
  } else if constexpr (consumer_tuning(C).short_tile_change) {
    c.output_starts = true;
  } else {
#pragma unroll
    for (float& o : r.output) o = 0.0f;
  }
}

// Lines 3 to 6: scores alone, for no block before has left a P to multiply.
template <Kernel C>
__device__ __forceinline__ void first_block(ConsumerState<C>& c, ThreadTile<C>& r) {
  const KvState<C> k = c.stages.next_kv();
  const uint32_t q_low = c.stages.q_operand();
  const uint32_t k_low = c.stages.k_operand(k);
  receive_q(c);
  c.stages.wait_for(k);  // line 3
  fence_cp_async(c);
  start_scores(c, r);
  c.ping_pong.wait();
  ptx::wgmma_fence();
  issue_scores(c, r, q_low, k_low);  // line 4
  c.ping_pong.pass();
  read_key_scales(c, k.stage());
  read_mask_bits(c, r, k.stage());
  if constexpr (consumer_tuning(C).draws_early) draw(c, r);
  load_ahead(c, r, c.tile.first_key());
  ptx::wgmma_wait_group<0>();
  c.stages.release_kv(k);  // line 5
  release_key_terms(c);
  release_spent_q(c);
  c.stages.release_delayed_v();
  c.stages.expect_v();
  prepare_scores(c, r);
  ScoreStep<C> result;
  online_softmax(c, r, true, result);  // line 6
  lose_huge_scores(c, r.rows, result);
  r.add_sums(result);
  drop_and_pack_p<0>(c, r);
  start_output(c, r);
}

// Lines 8 to 12: the products of a step. Returns once its scores are there, while P V still runs.
template <Kernel C>
__device__ __forceinline__ void multiply_block(ConsumerState<C>& c, ThreadTile<C>& r,
                                               bool starts_tile, KvState<C> k, KvState<C> v) {
  if constexpr (consumer_tuning(C).draws_early) draw(c, r);
  c.stages.wait_for(k, v);  // lines 8 and 10
  fence_cp_async(c);
  if (!starts_tile && c.promoted.promotes_under(c.tile.block())) {
    issue_products<true>(c, r, k, v);  // lines 9 and 11
  } else {
    issue_products<false>(c, r, k, v);
  }
  read_key_scales(c, k.stage());
  read_mask_bits(c, r, k.stage());
  if (starts_tile) load_ahead(c, r, c.tile.first_key());
  ptx::wgmma_wait_group<1>();  // line 12
  c.stages.release_kv(k);      // line 15
  release_key_terms(c);
  release_spent_q(c);
}

// Lines 8 to 16.
template <Kernel C>
__device__ __forceinline__ void block(ConsumerState<C>& c, ThreadTile<C>& r, bool starts_tile) {
  constexpr int kEarly = consumer_tuning(C).early_p;
  const KvState<C> k = c.stages.next_kv();
  const KvState<C> v = c.stages.next_kv();
  multiply_block(c, r, starts_tile, k, v);

  prepare_scores(c, r);
  const bool guarded = C.guarded() && !(consumer_tuning(C).starts_apart && starts_tile) &&
                       c.tile.takes_guarded_step();
  const RowState finished = r.rows;
  ScoreStep<C> result;
  if (guarded) {  // line 13
    guarded_softmax(c, r, result, [&] { wait_for_output(c, v); });
  } else {
    online_softmax(c, r, starts_tile, result);
    if (kEarly > 0) wait_for_output(c, v);
  }
  if (kEarly == 0) wait_for_output(c, v);  // lines 14 and 15

  // O is at rest: it moves to the new reference, or leaves if its tile is finished.
  if (guarded) {
    if (guard_fires<typename ConsumerState<C>::Score>(result)) after_guard_fired(c, r, result);
  } else {
    if (starts_tile) {
      finish_tile<false>(c, r, finished);
      start_output(c, r);
    } else {
      rescale_output(c, r, result);
    }
    pack_p<0, kEarly>(r);
    lose_huge_scores(c, r.rows, result);
  }
  r.add_sums(result);
  drop_and_pack_p<kEarly>(c, r);  // line 16
}

// Lines 18 to 20: P V alone, for the next block is not this warpgroup's, or there is none.
template <Kernel C>
__device__ __forceinline__ void last_product(ConsumerState<C>& c, ThreadTile<C>& r, Step next) {
  if (next == Step::kOthers) {
    c.ping_pong.wait();
    c.stages.release_unread(c.stages.next_kv());
    c.stages.pass_captured();
  }
  const KvState<C> v = c.stages.next_kv();
  const uint32_t v_low = c.stages.v_operand(v);
  c.stages.wait_for(v);  // line 18
  fence_cp_async(c);
  ptx::wgmma_fence();
  issue_output(c, r, v_low);  // line 19
  if (next == Step::kOthers) c.ping_pong.pass();
  wait_for_output(c, v);
  c.stages.expect_no_v();
  finish_tile<true>(c, r, r.rows);  // line 20
  if (next == Step::kOthers) end_passed_block(c);
}

// Whether block() follows at once. Otherwise rare code is due: lost scores, a tile's first step
// that is compiled apart, or the end of a part of O.
template <Kernel C>
__device__ __forceinline__ bool steps_go_on(const ConsumerState<C>& c) {
  if (!C.guarded()) return true;
  const bool leaves =
      consumer_tuning(C).starts_apart ? c.tile.is_last_block_or_lost() : c.tile.scores_lost();
  return !leaves && !c.promoted.promotes_behind(c.tile.block());
}

// Line 7: from a first block on through whole tiles, to the first step that is not this
// warpgroup's, which it leaves in `step`. The outer loop is for rare code, which so does not lie
// between the hot code's ends.
template <Kernel C>
__device__ __forceinline__ void attend(ConsumerState<C>& c, ThreadTile<C>& r, Step& step) {
  first_block(c, r);
  for (;;) {
    if (consumer_tuning(C).starts_apart && c.tile.is_last_block()) {
      if (!start_next_tile(c, step)) return;
      block(c, r, true);
    }
    while (steps_go_on(c)) {
      const bool starts_tile = !consumer_tuning(C).starts_apart && c.tile.is_last_block();
      if (!starts_tile) {
        c.tile.next_block();  // having begun with a tile, a warpgroup goes through with it
      } else {
        if (!start_next_tile(c, step)) return;
      }
      block(c, r, starts_tile);
    }
    if (!C.e4m3() || c.tile.scores_lost()) recompute_block(c, r);
    if (c.promoted.promotes_behind(c.tile.block())) promote_output(c, r);
  }
}

// The loop of a kernel; max_tracking.cuh has that of kernels which track the maximum.
template <Kernel C, bool TracksMax = consumer_tuning(C).tracks_max>
struct MainLoop {
  static_assert(!TracksMax, "the source of this kernel does not include max_tracking.cuh");
  static __device__ __forceinline__ void run(ConsumerState<C>& c, ThreadTile<C>& r, Step& step) {
    attend(c, r, step);
  }
};

}  // namespace fa3::hopper
