// SPDX-License-Identifier: Apache-2.0
// The consumer's loop without overlap within a warpgroup (paper, Algorithm 1): a step multiplies
// Q K^T, computes the softmax and multiplies P V, one after the other. A thread so holds S or P,
// not both, and two CTAs of two consumers have the registers; while some of the four compute a
// softmax, others have products. The pipeline carries K of a block and then its V. Next:
// guard.cuh.
#pragma once

#include "engine/hopper/forward/consumer/consumer.cuh"

namespace fa3::hopper {

// S of the block, without what its mask hides.
template <Kernel C>
__device__ __forceinline__ void multiply_scores(Consumer<C>& c, ThreadTile<C>& r, uint32_t q_low) {
  const KvState<C> k = c.stages.next_kv();
  const uint32_t k_low = c.stages.k_operand(k);
  c.stages.wait_for(k);
  ptx::wgmma_fence();
  issue_scores(c, r, q_low, k_low);
  ptx::wgmma_wait_group<0>();
  if (c.is_masked()) {
    c.weights.read(c, r, k.stage());
    c.weights.hide(c, r);
  }
  LogitsOf<C>::see_products(c, r);
  c.stages.release_kv(k);
  release_spent_q(c);
}

// References follow the rows' maxima; O and its sums, which are at rest, follow the references.
// `ref`: what P is computed against.
template <Kernel C>
__device__ __forceinline__ void follow_maximum(Consumer<C>& c, ThreadTile<C>& r,
                                               ScoreStep<C>& result, float (&ref)[kRowsPerThread]) {
  float max[kRowsPerThread];
  row_max(r.scores, c.scores, max);
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    result.rescale[row] = move_reference(r.rows.ref[row], max[row], c.scores, ref[row]);
  }
  if (any_is_large(ref)) {
    rebase_large_rows(r.scores, max, c.scores, ref);
    go_online(c);
  }
  c.sum.rescale(r, result);
  LogitsOf<C>::rescale(r, result.rescale);
}

// Lost scores again.
template <Kernel C>
__device__ __forceinline__ void recompute_beside_output(Consumer<C>& c, ThreadTile<C>& r) {
  ParkedOutput<C> parked;
  parked.park(r);
  const WorkTileOf<C>& work = c.work_tile();
  recompute_scores<C>(r.scores, c.params, work, c.first_row_of(work), c.tile.block());
  parked.restore(r);
}

// S becomes P, by an online or a guarded step; where the latter loses its scores, by an online step
// after it. All share the exponentials: compiled for each they take registers that are not there.
template <Kernel C>
__device__ __forceinline__ void weigh(Consumer<C>& c, ThreadTile<C>& r) {
  using Score = ScoresOf<C>;
  ScoreStep<C> result;
  bool online = !c.tile.takes_guarded_step();
  for (;;) {
    float ref[kRowsPerThread] = {finite_reference(r.rows.ref[0]), finite_reference(r.rows.ref[1])};
    if (online) follow_maximum(c, r, result, ref);
    BlockSums<Score> sums;
    exponentiate<0, C.shape.block_n / 2>(r.scores, ref, c.scores, sums);
    sums.store(c.scores, result);
    if (online || !guard_fires<Score>(result)) break;
    after_guard_fired<C>(c, r, result, r);
    if (!c.tile.scores_lost()) break;
    c.tile.recover_scores();
    go_online(c);
    recompute_beside_output(c, r);
    online = true;
  }
  LogitsOf<C>::see_weights(r);
  r.add_sums(result);
  c.sum.template pack<0, ThreadTile<C>::kScores>(r);
}

// O += P V of the block.
template <Kernel C>
__device__ __forceinline__ void multiply_values(Consumer<C>& c, ThreadTile<C>& r) {
  const KvState<C> v = c.stages.next_kv();
  const uint32_t v_low = c.stages.v_operand(v);
  c.stages.wait_for(v);
  ptx::wgmma_fence();
  c.sum.issue(r, v_low);
  wait_for_output(c, v);
}

// All blocks of a tile, of which this is the first.
template <Kernel C>
__device__ __forceinline__ void attend_tile(Consumer<C>& c, ThreadTile<C>& r) {
  r.rows = RowState{};
  LogitsOf<C>::start(r);
#pragma unroll
  for (float& o : r.output) o = 0.0f;
  receive_q(c);
  const uint32_t q_low = c.stages.q_operand();
  for (;;) {
    multiply_scores(c, r, q_low);
    weigh(c, r);
    multiply_values(c, r);
    if (c.tile.is_last_block()) return;
    c.tile.next_block();
  }
}

// Another warpgroup's block.
template <Kernel C>
__device__ __forceinline__ void pass_whole_block(Consumer<C>& c) {
  c.stages.release_unread(c.stages.next_kv());
  c.stages.release_unread(c.stages.next_kv());
  if (c.tile.is_last_block()) pass_tile(c);
}

template <Kernel C>
requires(!C.shape.overlaps) struct LoopOf<C> {
  static_assert(C.guarded() && !C.shape.ping_pong && !C.e4m3() && !C.dropout() && !C.capped() &&
                !C.dequantizes() && !C.can_split() && !kHasScoreFunction);

  static __device__ __forceinline__ void run(Consumer<C>& c, ThreadTile<C>& r) {
    Step next = next_step(c);
    while (next != Step::kEnd) {
      if (next == Step::kOthers) {
        pass_whole_block(c);
        next = next_step(c);
      } else {
        attend_tile(c, r);
        next = next_step(c);
        LogitsOf<C>::finish(c, r);
        c.sum.template finish<true>(c, r, r.rows);
      }
    }
  }
};

}  // namespace fa3::hopper
