// SPDX-License-Identifier: Apache-2.0
// The consumer of e4m3 tiles, whose rows may be peaked. Once the reference has been taken a look at
// the rows decides how the tile goes on: by guarded steps, or by steps that follow the maximum.
// Next: cuda/peaked_rows.h, which says what is peaked, and max_tracking_step() in cuda/softmax.cuh.
#pragma once

#include "engine/cuda/peaked_rows.h"
#include "engine/hopper/forward/mainloop.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
class MaxTrackingConsumer : Consumer<C> {
  using Base = Consumer<C>;

 public:
  using Base::Base;

  __device__ __forceinline__ void run() {
    Base::run_with([&](Tile& r, Step& step) {
      if constexpr (C.starts_apart()) {
        attend_starts_apart(r, step);
      } else {
        attend(r, step);
      }
    });
  }

 private:
  using Base::block;
  using Base::blocks_left_;
  using Base::drop_scores;
  using Base::first_block;
  using Base::kScores;
  using Base::kTracksMax;
  using Base::masked_from;
  using Base::mine_;
  using Base::promote_output;
  using Base::promoted_;
  using Base::read_scales;
  using Base::recompute_block;
  using Base::release_spent_q;
  using Base::score_;
  using Base::stages_;
  using Base::start_next_tile;
  using Base::stop_;
  using Base::stop_at;
  using Base::wait_for_output;
  using Base::warpgroup_;
  using typename Base::KvState;
  using typename Base::Score;
  using typename Base::Step;
  using typename Base::StepResult;
  using typename Base::Tile;

  // The loop of steps asks one question, whether it must stop; why, is asked outside of it.
  __device__ __forceinline__ void attend(Tile& r, Step& step) {
    first_block(r);
    for (;;) {
      if (blocks_left_ != 0) go_on_or_track_max(r);
      bool starts_tile = blocks_left_ == 0;
      if (!starts_tile) {
        --blocks_left_;
      } else {
        if (!start_next_tile(step)) return;
      }
      for (;;) {
        block(r, starts_tile);
        if (blocks_left_ <= stop_) break;
        --blocks_left_;
        starts_tile = false;
      }
    }
  }

  // Where tiles' first steps are compiled apart: in the order above, the loop of steps spills.
  __device__ __forceinline__ void attend_starts_apart(Tile& r, Step& step) {
    first_block(r);
    for (;;) {
      if (!tracks_max()) {
        if (blocks_left_ == 0) {
          if (!start_next_tile(step)) return;
          block(r, true);
        }
        while (blocks_left_ > stop_) {
          --blocks_left_;
          block(r, false);
        }
      }
      go_on(r);
      if (tracks_max()) track_max(r);
    }
  }

  // Until steps of block() are due, or the next tile.
  __device__ __forceinline__ void go_on_or_track_max(Tile& r) {
    for (;;) {
      go_on(r);
      if (!tracks_max()) return;
      track_max(r);
      if (blocks_left_ == 0) return;
    }
  }

  // Behind a step at which a loop has stopped, or a first one: what is due here, and the next stop.
  // All warps of the warpgroup come to the look with the same numbers: one gives up guarded steps,
  // or loses scores, behind guarded steps alone, and before the look there are none.
  __device__ __forceinline__ void go_on(Tile& r) {
    if (blocks_left_ < 0) recompute_block(r);
    const bool looks = blocks_left_ == mine_.online_from && blocks_left_ > 0;
    const int next_look = blocks_left_ > mine_.online_from ? mine_.online_from : 0;
    if (looks) look_at_rows(r);
    if (promoted_.promotes_behind(blocks_left_)) promote_output(r);
    stop_at(next_look);
  }

  // Are they peaked, by the keys that all of them have seen? Then the warpgroup follows their
  // maximum for the rest of the tile. Its warps answer together, for they must issue their products
  // together.
  __device__ __forceinline__ void look_at_rows(const Tile& r) {
    const int seen = masked_from() - blocks_left_;
    if (seen <= 0) return;
    constexpr float kBlockLimit = peaked_below(C.block_n, Score::kTop);
    constexpr unsigned kEnough = enough_low_sums(kRowsPerThread * kWarpgroupSize);
    const float limit = kBlockLimit * float(seen);
    const auto low_sums = [&](int row) {
      return ptx::bar_count(int(NamedBarrier::kRows) + warpgroup_, kWarpgroupSize,
                            r.rows.sum[row] < limit);
    };
    if (low_sums(0) + low_sums(1) >= kEnough) mine_.online_from = kTracksMax;
  }

  __device__ __forceinline__ bool tracks_max() const {
    return mine_.online_from == kTracksMax && blocks_left_ != 0;
  }

  // To the next stop, or to lost scores.
  __device__ __forceinline__ void track_max(Tile& r) {
    do {
      --blocks_left_;
      max_tracking_block(r);
    } while (blocks_left_ > stop_);
  }

  // As block(), within a tile and below its mask. References move in most steps, so O is multiplied
  // without a vote.
  __device__ __forceinline__ void max_tracking_block(Tile& r) {
    const KvState k = stages_.next_kv();
    const KvState v = stages_.next_kv();
    stages_.wait_for(k, v);
    if (promoted_.promotes_under(blocks_left_)) {
      this->template issue_products<true>(r, k, v);
    } else {
      this->template issue_products<false>(r, k, v);
    }
    read_scales(k);
    ptx::wgmma_wait_group<1>();
    stages_.release_kv(k);
    release_spent_q();
    StepResult result;
    max_tracking_step<C.shadow_weights()>(r.scores, r.rows, score_, result);
    const bool lost = outgrown(result);
    wait_for_output(v);
    promoted_.rescale(result.rescale);
    r.rescale_output(result.rescale);
    if (lost) drop_scores(result);
    r.add_sums(result);
    r.template pack<0, kScores>();
  }
};

}  // namespace fa3::hopper
