// SPDX-License-Identifier: Apache-2.0
// The main loop of e4m3 tiles, some of which have peaked rows. Once the reference has been taken, a
// look at the rows decides how the tile goes on: by guarded steps, or by max-tracking steps. Next:
// cuda/softmax/peaked_rows.h, which says what is peaked, and cuda/softmax/max_tracking_step.cuh.
#pragma once

#include "engine/cuda/softmax/max_tracking_step.cuh"
#include "engine/cuda/softmax/peaked_rows.h"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward/consumer/mainloop.cuh"

namespace fa3::hopper {

template <Kernel C>
__device__ __forceinline__ bool tracks_max(const ConsumerState<C>& c) {
  return c.tile.mode() == TileMode::kMaxTracking && !c.tile.is_last_block();
}

// Like block(), within a tile and below its mask. References move in most steps, so O is multiplied
// without a vote.
template <Kernel C>
__device__ __forceinline__ void max_tracking_block(ConsumerState<C>& c, ThreadTile<C>& r) {
  const KvState<C> k = c.stages.next_kv();
  const KvState<C> v = c.stages.next_kv();
  multiply_block(c, r, false, k, v);
  ScoreStep<C> result;
  max_tracking_step<consumer_tuning(C).shadow_p>(r.scores, r.rows, c.score, result);
  const bool lost = outgrown(result);
  wait_for_output(c, v);
  c.promoted.rescale(result.rescale);
  r.rescale_output(result.rescale);
  if (lost) {
    lose_scores(c, result);
    forget_outgrown_references(r.rows, result);
  }
  r.add_sums(result);
  pack_p(r);
}

// To the next stop, or to lost scores.
template <Kernel C>
__device__ __forceinline__ void track_max(ConsumerState<C>& c, ThreadTile<C>& r) {
  do {
    c.tile.next_block();
    max_tracking_block(c, r);
  } while (!c.tile.is_at_stop());
}

// Are they peaked, by the keys that all of them have seen? Then the warpgroup tracks their maximum
// for the rest of the tile. Its warps answer together, for they must issue their products together.
template <Kernel C>
__device__ __forceinline__ void look_at_rows(ConsumerState<C>& c, const ThreadTile<C>& r) {
  const int seen = c.masked_from() - c.tile.block();
  if (seen <= 0) return;
  constexpr float kBlockLimit = peaked_below(C.shape.block_n, ConsumerState<C>::Score::kTop);
  constexpr unsigned kEnough = enough_low_sums(kRowsPerThread * kWarpgroupSize);
  const float limit = kBlockLimit * float(seen);
  const auto low_sums = [&](int row) {
    return ptx::bar_count(int(NamedBarrier::kRows) + c.warpgroup, kWarpgroupSize,
                          r.rows.sum[row] < limit);
  };
  if (low_sums(0) + low_sums(1) >= kEnough) c.tile.set_mode(TileMode::kMaxTracking);
}

// Behind a step at which a loop has stopped, or a first one: what is due here, and the next stop.
// All warps of the warpgroup come to the look with the same numbers: a warp gives up guarded steps,
// or loses scores, behind guarded steps alone, and before the look there are none.
template <Kernel C>
__device__ __forceinline__ void go_on(ConsumerState<C>& c, ThreadTile<C>& r) {
  if (c.tile.scores_lost()) recompute_block(c, r);
  const bool looks = c.tile.guarded_steps_follow();
  const int next_look = c.tile.next_look();
  if (looks) look_at_rows(c, r);
  if (c.promoted.promotes_behind(c.tile.block())) promote_output(c, r);
  stop_at(c, next_look);
}

// Until steps of block() are due, or the next tile.
template <Kernel C>
__device__ __forceinline__ void go_on_or_track_max(ConsumerState<C>& c, ThreadTile<C>& r) {
  for (;;) {
    go_on(c, r);
    if (!tracks_max(c)) return;
    track_max(c, r);
    if (c.tile.is_last_block()) return;
  }
}

// Like attend(). The loop of steps asks one question, whether it must stop; why, is asked outside
// of it.
template <Kernel C>
__device__ __forceinline__ void attend_peaked(ConsumerState<C>& c, ThreadTile<C>& r, Step& step) {
  first_block(c, r);
  for (;;) {
    if (!c.tile.is_last_block()) go_on_or_track_max(c, r);
    bool starts_tile = c.tile.is_last_block();
    if (!starts_tile) {
      c.tile.next_block();
    } else {
      if (!start_next_tile(c, step)) return;
    }
    for (;;) {
      block(c, r, starts_tile);
      if (c.tile.is_at_stop()) break;
      c.tile.next_block();
      starts_tile = false;
    }
  }
}

// The same where tiles' first steps are compiled apart: in the order above, the loop of steps
// spills.
template <Kernel C>
__device__ __forceinline__ void attend_peaked_starts_apart(ConsumerState<C>& c, ThreadTile<C>& r,
                                                           Step& step) {
  first_block(c, r);
  for (;;) {
    if (!tracks_max(c)) {
      if (c.tile.is_last_block()) {
        if (!start_next_tile(c, step)) return;
        block(c, r, true);
      }
      while (!c.tile.is_at_stop()) {
        c.tile.next_block();
        block(c, r, false);
      }
    }
    go_on(c, r);
    if (tracks_max(c)) track_max(c, r);
  }
}

template <Kernel C>
struct MainLoop<C, true> {
  static __device__ __forceinline__ void run(ConsumerState<C>& c, ThreadTile<C>& r, Step& step) {
    if constexpr (consumer_tuning(C).starts_apart) {
      attend_peaked_starts_apart(c, r, step);
    } else {
      attend_peaked(c, r, step);
    }
  }
};

}  // namespace fa3::hopper
