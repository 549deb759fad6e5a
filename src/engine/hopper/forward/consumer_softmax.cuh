// SPDX-License-Identifier: Apache-2.0
// The softmax of a block of scores by a consumer warpgroup: which step it takes, the mask, and what
// becomes of weights that left their range. Next: cuda/softmax.cuh, mainloop.cuh.
#pragma once

#include "engine/cuda/mask.cuh"
#include "engine/hopper/forward/consumer_tile.cuh"
#include "engine/hopper/forward/recompute_scores.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
class ConsumerSoftmax : protected ConsumerTile<C> {
  using Base = ConsumerTile<C>;

 protected:
  using Base::Base;
  using Base::block_begin;
  using Base::blocks_left_;
  using Base::consumer_warp;
  using Base::edge;
  using Base::first_row_of;
  using Base::is_lane_0;
  using Base::kScores;
  using Base::kTracksMax;
  using Base::live_rows_;
  using Base::masked_from;
  using Base::mine_;
  using Base::params_;
  using Base::promoted_;
  using Base::score_;
  using Base::smem_;
  using Base::stages_;
  using Base::warpgroup_;
  using typename Base::Score;
  using typename Base::StepResult;
  using typename Base::Tile;

  static constexpr int kEarly = C.early_weights();

  // e4m3 leaves less room above the reference: long runs take it from more keys that all rows see.
  // Measured: without this, causal tiles of 16k keys at 64 columns take 1.2 times as long. Where
  // 256 keys are little more than a block, or rows see different keys of the first ones, shorter
  // runs gain too: causal 2k 3 to 4%.
  __device__ __forceinline__ void take_longer_reference() {
    constexpr int kLongRunKeys = C.block_n > 128 ? 512 : 2048, kLongMaskedRunKeys = 512,
                  kKeys = 256;
    const bool masked = C.tracks_max() && mine_.masked_from < mine_.count;
    const int long_run = masked ? kLongMaskedRunKeys : kLongRunKeys;
    const int from = mine_.masked_from - kKeys / C.block_n;
    if (mine_.count >= long_run / C.block_n && from < mine_.online_from) {
      mine_.online_from = from > 0 ? from : 0;
    }
  }

  // Before the block's K is released: its scales go with it.
  __device__ __forceinline__ void read_scales(typename ConsumerStages<C>::KvState k) {
    if constexpr (C.e4m3) {
      const float query = smem_.e4m3.tiles[stages_.item()].query[warpgroup_];
      hopper::read_scales(score_, query, stages_.at().key_scales(k.stage()));
      __syncwarp();  // every lane has read before lane 0 releases the stage
    }
  }

  __device__ __forceinline__ void online_softmax(Tile& r, bool starts_tile, StepResult& result) {
    if (starts_tile) r.rows = RowState{};
    if constexpr (C.short_steps()) {
      if (live_rows_ == 0) {
        result = {};
        return;
      }
    }
    if (blocks_left_ >= masked_from() || mine_.edge.hides_left(block_begin())) mask(r);
    if constexpr (C.short_steps()) {
      if (live_rows_ == 1) {
        online_step<1>(r.scores, r.rows, score_, result);
        return;
      }
    }
    online_step(r.scores, r.rows, score_, result);
  }

  __device__ __forceinline__ void mask(Tile& r) {
    mask_scores(r.scores, edge(), params_.output.pack, int(thread_in_block() % kWarpgroupSize),
                block_begin());
  }

  // `wait_for_output` is called before weights become an operand early.
  template <class Wait>
  __device__ __forceinline__ void guarded_softmax(Tile& r, StepResult& result,
                                                  const Wait& wait_for_output) {
    guarded_step<kEarly>(r.scores, r.rows, score_, result, [&] {
      if constexpr (kEarly > 0) {
        wait_for_output();
        r.template pack<0, kEarly>();
      }
    });
  }

  // The guard has fired in this warp: brings its weights back into range, the output with them.
  // Weights that overflowed are gone with their scores: their block counts for nothing until
  // recompute_block().
  __device__ __forceinline__ void correct(Tile& r, StepResult& result) {
    WorkTileOf<C>& item = smem_.work_tiles[stages_.item()];
    const unsigned warp = consumer_warp();
    if (is_lane_0()) ++item.corrections[warp];
    __syncwarp();
    if (item.corrections[warp] >= kMostCorrections) mine_.online_from = 0;
    if (can_scale_back(result)) {
      scale_back<Score>(r.scores, r.rows, result);
      rescale(r, result);
      r.template pack<0, kEarly>();
    } else {
      drop_scores(result);
    }
  }

  __device__ __forceinline__ void drop_scores(StepResult& result) {
    result.block_sum[0] = result.block_sum[1] = 0.0f;
    blocks_left_ = ~blocks_left_;
  }

  // Computes the lost scores of the last block again; goes on by online steps, or following.
  __device__ __forceinline__ void recompute_block(Tile& r) {
    blocks_left_ = ~blocks_left_;
    if (!C.tracks_max() || mine_.online_from != kTracksMax) mine_.online_from = 0;
    const WorkTileOf<C>& item = smem_.work_tiles[stages_.item()];
    recompute_scores<C>(r.scores, params_, item, first_row_of(item), blocks_left_);
    score_.prepare(r.scores);
    if constexpr (C.tracks_max()) forget_infinite_references(r.rows);
    StepResult result;
    online_step(r.scores, r.rows, score_, result);
    rescale(r, result);
    r.add_sums(result);
    r.template pack<0, kScores>();
  }

  // To the reference that the step has left.
  __device__ __forceinline__ void rescale(Tile& r, const StepResult& step) {
    if constexpr (C.e4m3 || C.short_steps()) {
      // Most often nothing moves: then a vote is all.
      if (!__any_sync(0xffffffff, step.rescale[0] != 1.0f || step.rescale[1] != 1.0f)) return;
    }
    if constexpr (C.e4m3) promoted_.rescale(step.rescale);
    r.rescale_output(step.rescale);
  }

 private:
  // From so many corrections on, a warp takes the rest of its tile by online steps: a correction
  // costs more than an online step. Measured: docs/lab/hopper.md.
  static constexpr int kMostCorrections = 3;

  // A max-tracking step has moved them, and multiplied what was before by zero: like rows that have
  // seen no key.
  static __device__ __forceinline__ void forget_infinite_references(RowState& rows) {
#pragma unroll
    for (float& ref : rows.ref) ref = ref == kInfinity ? -kInfinity : ref;
  }
};

}  // namespace fa3::hopper
