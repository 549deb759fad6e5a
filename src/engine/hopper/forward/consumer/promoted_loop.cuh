// SPDX-License-Identifier: Apache-2.0
// The loop of e4m3 tiles, whose O is a sum in parts (policies/sum_promoted.cuh). Some of them have
// peaked rows. Once the reference has been taken, a look at the rows decides how such a tile goes
// on: by guarded steps, or by max-tracking steps. Next: cuda/softmax/peaked_rows.h, which says what
// is peaked, and cuda/softmax/max_tracking_step.cuh.
#pragma once

#include "engine/cuda/softmax/max_tracking_step.cuh"
#include "engine/cuda/softmax/peaked_rows.h"
#include "engine/hopper/config/e4m3_tuning.h"
#include "engine/hopper/forward/consumer/consumer.cuh"

namespace fa3::hopper {

// Whether step() follows at once. Otherwise rare code is due: lost scores, a tile's first step that
// is compiled apart, or the end of a part of O.
template <Kernel C>
__device__ __forceinline__ bool steps_go_on(const Consumer<C>& c) {
  if (!C.guarded()) return true;
  const bool leaves = starts_apart(C) ? c.tile.is_last_block_or_lost() : c.tile.scores_lost();
  return !leaves && !c.sum.promotes_behind(c.tile.block());
}

// Kernels with masks of every kind do not track the maximum.
template <Kernel C>
__device__ __forceinline__ void attend_unpeaked(Consumer<C>& c, ThreadTile<C>& r, Step& next) {
  first_block(c, r);
  for (;;) {
    if (starts_apart(C) && c.tile.is_last_block()) {
      if (!start_next_tile(c, next)) return;
      step(c, r, true);
    }
    while (steps_go_on(c)) {
      const bool starts_tile = !starts_apart(C) && c.tile.is_last_block();
      if (!starts_tile) {
        c.tile.next_block();
      } else {
        if (!start_next_tile(c, next)) return;
      }
      step(c, r, starts_tile);
    }
    if (c.tile.scores_lost()) recompute_block(c, r);
    if (c.sum.promotes_behind(c.tile.block())) c.sum.promote(c, r);
  }
}

// ---- Tiles that may have peaked rows ----

template <Kernel C>
__device__ __forceinline__ bool tracks_max(const Consumer<C>& c) {
  return c.tile.mode() == TileMode::kMaxTracking && !c.tile.is_last_block();
}

// Like step(), within a tile and below its mask. References move in most steps, so O is multiplied
// without a vote.
template <Kernel C>
__device__ __forceinline__ void max_tracking_step(Consumer<C>& c, ThreadTile<C>& r) {
  const KvState<C> k = c.stages.next_kv();
  const KvState<C> v = c.stages.next_kv();
  multiply(c, r, false, k, v);
  LogitsOf<C>::see_products(c, r);
  ScoreStep<C> result;
  max_tracking_step<shadow_p(C)>(r.scores, r.rows, c.scores, result);
  const bool lost = outgrown(result);
  wait_for_output(c, v);
  c.sum.follow(r, result.rescale);
  if (lost) {
    result.block_sum[0] = result.block_sum[1] = 0.0f;
    c.tile.lose_scores();
    forget_outgrown_references(r.rows, result);
  }
  r.add_sums(result);
  c.sum.template pack<0, ThreadTile<C>::kScores>(r);
}

// To the next stop, or to lost scores.
template <Kernel C>
__device__ __forceinline__ void track_max(Consumer<C>& c, ThreadTile<C>& r) {
  do {
    c.tile.next_block();
    max_tracking_step(c, r);
  } while (!c.sum.is_stop(c.tile.block()));
}

// Are they peaked, by the keys that all of them have seen? Then the warpgroup tracks their maximum
// for the rest of the tile. Its warps answer together, for they must issue their products together.
template <Kernel C>
__device__ __forceinline__ void look_at_rows(Consumer<C>& c, const ThreadTile<C>& r) {
  const int seen = c.masked_from() - c.tile.block();
  if (seen <= 0) return;
  constexpr float kBlockLimit = peaked_below(C.shape.block_n, ScoresOf<C>::kTop);
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
__device__ __forceinline__ void go_on(Consumer<C>& c, ThreadTile<C>& r) {
  if (c.tile.scores_lost()) recompute_block(c, r);
  const int block = c.tile.block(), look = c.tile.blocks().online_from;
  const bool looks = block == look && block > 0;
  const int next_look = block > look ? look : 0;  // 0: it is past
  if (looks) look_at_rows(c, r);
  if (c.sum.promotes_behind(c.tile.block())) c.sum.promote(c, r);
  c.sum.stop_at(next_look);
}

// Until step() is due, or the next tile.
template <Kernel C>
__device__ __forceinline__ void go_on_or_track_max(Consumer<C>& c, ThreadTile<C>& r) {
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
__device__ __forceinline__ void attend_peaked(Consumer<C>& c, ThreadTile<C>& r, Step& next) {
  first_block(c, r);
  for (;;) {
    if (!c.tile.is_last_block()) go_on_or_track_max(c, r);
    bool starts_tile = c.tile.is_last_block();
    if (!starts_tile) {
      c.tile.next_block();
    } else {
      if (!start_next_tile(c, next)) return;
    }
    for (;;) {
      step(c, r, starts_tile);
      if (c.sum.is_stop(c.tile.block())) break;
      c.tile.next_block();
      starts_tile = false;
    }
  }
}

// attend_peaked() where tiles' first steps are compiled apart: in its order, the loop of steps
// spills.
template <Kernel C>
__device__ __forceinline__ void attend_peaked_starts_apart(Consumer<C>& c, ThreadTile<C>& r,
                                                           Step& next) {
  first_block(c, r);
  for (;;) {
    if (!tracks_max(c)) {
      if (c.tile.is_last_block()) {
        if (!start_next_tile(c, next)) return;
        step(c, r, true);
      }
      while (!c.sum.is_stop(c.tile.block())) {
        c.tile.next_block();
        step(c, r, false);
      }
    }
    go_on(c, r);
    if (tracks_max(c)) track_max(c, r);
  }
}

template <Kernel C>
requires(C.e4m3()) struct LoopOf<C> : OverlappedLoop<C> {
  static constexpr bool kTracksMax = tracks_max(C);

  static __device__ __forceinline__ constexpr bool may_guard(bool starts_tile) {
    return !(starts_apart(C) && starts_tile);
  }
  static __device__ __forceinline__ void attend(Consumer<C>& c, ThreadTile<C>& r, Step& next) {
    if constexpr (!kTracksMax) {
      attend_unpeaked(c, r, next);
    } else if constexpr (starts_apart(C)) {
      attend_peaked_starts_apart(c, r, next);
    } else {
      attend_peaked(c, r, next);
    }
  }
};

}  // namespace fa3::hopper
