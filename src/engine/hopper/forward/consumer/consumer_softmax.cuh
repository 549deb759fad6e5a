// SPDX-License-Identifier: Apache-2.0
// The softmax of a block of scores by a consumer warpgroup: its mask, its step, and what becomes of
// a block where the guard has fired. Next: cuda/softmax/softmax.cuh, mainloop.cuh.
#pragma once

#include "engine/cuda/mask/mask.cuh"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward/consumer/consumer_products.cuh"
#include "engine/hopper/forward/consumer/consumer_state.cuh"
#include "engine/hopper/forward/consumer/recompute_scores.cuh"

namespace fa3::hopper {

template <Kernel C>
using ScoreStep = typename ConsumerState<C>::StepResult;

// Before the block's K is released: its scales go with it.
template <Kernel C>
__device__ __forceinline__ void read_key_scales(ConsumerState<C>& c, uint32_t k_stage) {
  if constexpr (C.e4m3()) {
    const float query = c.smem.e4m3.tiles[c.stages.work_tile()].query[c.warpgroup];
    ScoreHook<C>::read_scales(c.score, query, c.stages.at().key_scales(k_stage));
    __syncwarp();  // every lane has read before lane 0 releases the stage
  }
}

// Before the block's K is released, likewise.
template <Kernel C>
__device__ __forceinline__ void read_mask_bits(const ConsumerState<C>& c, ThreadTile<C>& r,
                                               uint32_t k_stage) {
  if constexpr (C.block_mask()) {
    if (c.tile.block() < c.masked_from()) return;
    r.bits.load(c.stages.at().mask_bits(k_stage), c.warpgroup * kRowsPerWarpgroup,
                c.tile.first_key() % kMaskBlock, int(thread_in_block() % kWarpgroupSize));
    __syncwarp();
  }
}

// What a score function loads of a block's keys. Those of a tile's first block come under its
// products, of others under the block before.
template <Kernel C>
__device__ __forceinline__ void load_ahead(const ConsumerState<C>& c, ThreadTile<C>& r,
                                           int first_key) {
  if constexpr (kLoadsPairs) {
    const WorkTileOf<C>& work = c.work_tile();
    c.score.load_ahead(r, c.params, work, c.first_row_of(work), first_key);
  }
}

// From products to what the mask and the softmax take.
template <Kernel C>
__device__ __forceinline__ void prepare_scores(ConsumerState<C>& c, ThreadTile<C>& r) {
  if constexpr (kHasScoreFunction && !kAddsToScore) {
    const WorkTileOf<C>& work = c.work_tile();
    const int first_key = c.tile.first_key();
    if constexpr (kLoadsTile) {
      const uint32_t tile = c.stages.at().captured(c.stages.wait_for_captured());
      c.score.template prepare_by_tile<C>(r.scores, tile, c.warp(), c.params, work,
                                          c.first_row_of(work), first_key);
      c.stages.release_captured();
      return;
    }
    c.score.prepare(r.scores, r, c.params, work, c.first_row_of(work), first_key);
    if (!c.tile.is_last_block()) load_ahead(c, r, first_key - C.shape.block_n);
  } else {
    c.score.prepare(r.scores);
  }
}

template <Kernel C>
__device__ __forceinline__ void mask(const ConsumerState<C>& c, ThreadTile<C>& r) {
  if constexpr (C.block_mask()) {
    r.bits.hide(r.scores, int(thread_in_block() % kWarpgroupSize));
    return;
  }
  mask_scores(r.scores, c.edge(), c.params.output.pack, int(thread_in_block() % kWarpgroupSize),
              c.tile.first_key());
}

template <Kernel C>
__device__ __forceinline__ void go_online(ConsumerState<C>& c) {
  c.tile.set_mode(TileMode::kOnline);
}

// A row of whose first block the score function hides all has no reference for guarded steps. They
// would find out, at the price of several steps.
template <Kernel C>
__device__ __forceinline__ void look_for_references(ConsumerState<C>& c, const RowState& rows) {
  const bool lacks_one = rows.ref[0] == -kInfinity || rows.ref[1] == -kInfinity;
  if (__any_sync(0xffffffff, lacks_one)) go_online(c);
}

template <Kernel C>
__device__ __forceinline__ void online_softmax(ConsumerState<C>& c, ThreadTile<C>& r,
                                               bool starts_tile, ScoreStep<C>& result) {
  if (starts_tile) r.rows = RowState{};
  if constexpr (consumer_tuning(C).short_steps) {
    if (c.tile.live_rows() == 0) {
      result = {};
      return;
    }
  }
  if (c.tile.block() >= c.masked_from() || c.tile.hides_left()) mask(c, r);
  if constexpr (consumer_tuning(C).short_steps) {
    if (c.tile.live_rows() == 1) {
      online_step<1>(r.scores, r.rows, c.score, result);
      return;
    }
  }
  online_step<kRowsPerThread, !C.guarded()>(r.scores, r.rows, c.score, result);
  if constexpr (kScoreMayHide && C.guarded()) {
    if (starts_tile) look_for_references(c, r.rows);
  }
}

// `wait_for_output` is called before the early elements of P become an operand.
template <Kernel C, class Wait>
__device__ __forceinline__ void guarded_softmax(ConsumerState<C>& c, ThreadTile<C>& r,
                                                ScoreStep<C>& result, const Wait& wait_for_output) {
  constexpr int kEarly = consumer_tuning(C).early_p;
  guarded_step<kEarly>(r.scores, r.rows, c.score, result, [&] {
    if constexpr (kEarly > 0) {
      wait_for_output();
      pack_p<0, kEarly>(r);
    }
  });
}

// P becomes an operand, without what is dropped of it. The sums of P have it all.
template <int Begin, Kernel C>
__device__ __forceinline__ void drop_and_pack_p(ConsumerState<C>& c, ThreadTile<C>& r) {
  if constexpr (!consumer_tuning(C).draws_early) draw(c, r);
  pack_p<Begin, ThreadTile<C>::kScores>(r);
  if constexpr (C.dropout()) c.dropout.drop(r.p, r.draws, c.params.dropout);
}

// O and its sums move to the reference that the step has left.
template <Kernel C>
__device__ __forceinline__ void rescale_output(ConsumerState<C>& c, ThreadTile<C>& r,
                                               const StepResult& step) {
  if constexpr (C.e4m3() || consumer_tuning(C).short_steps) {
    // Most often nothing moves: then a vote is all.
    if (!__any_sync(0xffffffff, step.rescale[0] != 1.0f || step.rescale[1] != 1.0f)) return;
  }
  if constexpr (C.e4m3()) c.promoted.rescale(step.rescale);
  r.rescale_output(step.rescale);
}

// Where P is of no use, its scores are gone too: their block counts for nothing until
// recompute_block().
template <Kernel C>
__device__ __forceinline__ void lose_scores(ConsumerState<C>& c, ScoreStep<C>& result) {
  result.block_sum[0] = result.block_sum[1] = 0.0f;
  c.tile.lose_scores();
}

// Behind an online step. Its P are of no use beside a large reference, which is looked for late:
// before the exponentials a vote is waited for.
template <Kernel C>
__device__ __forceinline__ void lose_huge_scores(ConsumerState<C>& c, const RowState& rows,
                                                 ScoreStep<C>& result) {
  if constexpr (C.guarded() && ConsumerState<C>::Score::kRebases) {
    if (any_is_large(rows.ref)) lose_scores(c, result);
  }
}

// After this many fired guards in a tile a warp takes the rest of it by online steps: one costs
// less than a fired guard. Measured: docs/lab/hopper.md.
inline constexpr int kMostGuardFires = 3;
inline constexpr int kMostCounted = 255;

// Counts a fired guard. With headroom one fires seldom, and pays for itself if another block passes
// before the next.
template <Kernel C>
__device__ __forceinline__ bool fires_too_often(const ConsumerState<C>& c) {
  WorkTileOf<C>& work = c.work_tile();
  unsigned char& fired = work.fired_guards[c.warp()];
  if (ptx::lane() == 0 && fired < kMostCounted) ++fired;
  __syncwarp();
  const int count = fired;
  const int visited = work.mine[c.warpgroup].count - c.tile.block();
  return count >= kMostGuardFires && 2 * count > visited;
}

// The guard has fired in this warp: brings its P back into range, and O with it, or gives up the
// block's scores.
template <Kernel C>
__device__ __forceinline__ void after_guard_fired(ConsumerState<C>& c, ThreadTile<C>& r,
                                                  ScoreStep<C>& result) {
  using Score = typename ConsumerState<C>::Score;
  if constexpr (C.has_headroom()) {
    if (fires_too_often(c)) go_online(c);
  } else {
    WorkTileOf<C>& work = c.work_tile();
    const unsigned warp = c.warp();
    if (ptx::lane() == 0) ++work.fired_guards[warp];
    __syncwarp();
    if (work.fired_guards[warp] >= kMostGuardFires) go_online(c);
  }
  if (can_rescale_after_guard(result)) {
    rescale_after_guard<Score>(r.scores, r.rows, result);
    rescale_output(c, r, result);
    pack_p<0, consumer_tuning(C).early_p>(r);
  } else {
    lose_scores(c, result);
  }
}

// Recomputes the lost scores of the last block. The tile goes on by online steps, unless it tracks
// the maximum.
template <Kernel C>
__device__ __forceinline__ void recompute_block(ConsumerState<C>& c, ThreadTile<C>& r) {
  c.tile.recover_scores();
  if (!consumer_tuning(C).tracks_max || c.tile.mode() != TileMode::kMaxTracking) go_online(c);
  const WorkTileOf<C>& work = c.work_tile();
  load_ahead(c, r, c.tile.first_key());
  recompute_scores<C>(r.scores, c.params, work, c.first_row_of(work), c.tile.block());
  if constexpr (kAddsLines) {  // products began with nothing
    c.score.add(r.scores, c.added_lines(), work, c.tile.first_key());
  } else if constexpr (kLoadsTile || kAddsToScore) {  // likewise, or a tile is gone
    c.score.prepare(r.scores, r, c.params, work, c.first_row_of(work), c.tile.first_key());
  } else {
    prepare_scores(c, r);
  }
  if constexpr (ConsumerState<C>::Score::kRebases) {  // of e4m3, guarded steps alone lose scores
    if (c.tile.block() >= c.masked_from() || c.tile.hides_left()) mask(c, r);
  }
  ScoreStep<C> result;
  online_step(r.scores, r.rows, c.score, result);
  rescale_output(c, r, result);
  r.add_sums(result);
  if constexpr (consumer_tuning(C).draws_early) draw(c, r);
  drop_and_pack_p<0>(c, r);
}

}  // namespace fa3::hopper
