// SPDX-License-Identifier: Apache-2.0
// The consumer: one warpgroup, 64 query rows of each tile (paper, Algorithm 1, "consumer", with the
// two-stage pipeline of Algorithm 2).
//
// The pipeline of K and V carries, for each key block, its K and then the V of the block before it:
// what a step multiplies. A step issues S = Q K^T of its block and O += P V of the block before,
// and computes the softmax of S while P V runs. Steps run on across tiles: the last P V of a tile
// shares its step with the first Q K^T of the next, and the finished tile leaves in the middle of
// that step. Blocks that no row of this warpgroup sees pass by unread. Next: max_tracking.cuh,
// cuda/epilogue.cuh.
#pragma once

#include "engine/cuda/epilogue.cuh"
#include "engine/hopper/forward/consumer_softmax.cuh"
#include "engine/hopper/forward/store_tile.cuh"
#include "engine/hopper/forward/work_tile_blocks.cuh"
#include "engine/hopper/fp8/rescale_queries.cuh"
#include "engine/hopper/pipeline/ping_pong.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
class Consumer : protected ConsumerSoftmax<C> {
  using Base = ConsumerSoftmax<C>;

 public:
  __device__ __forceinline__ Consumer(const ForwardParams& params, SmemPlan<C>& smem,
                                      SmemAddresses<C> at, int warpgroup)
      : Base(params, smem, at, warpgroup), ping_pong_(warpgroup) {}

  __device__ __forceinline__ void run() {
    run_with([&](Tile& r, Step& step) { attend(r, step); });
  }

 protected:
  using typename Base::Score;
  using typename Base::StepResult;
  using typename Base::Tile;
  using KvState = typename ConsumerStages<C>::KvState;
  using Base::block_begin;
  using Base::blocks_left_;
  using Base::correct;
  using Base::first_row_of;
  using Base::guarded_softmax;
  using Base::kEarly;
  using Base::kScores;
  using Base::live_rows;
  using Base::live_rows_;
  using Base::mine_;
  using Base::online_softmax;
  using Base::output_starts_;
  using Base::params_;
  using Base::promoted_;
  using Base::promoted_sum;
  using Base::read_scales;
  using Base::recompute_block;
  using Base::rescale;
  using Base::score_;
  using Base::smem_;
  using Base::stages_;
  using Base::stop_at;
  using Base::take_longer_reference;
  using Base::warpgroup_;

  enum class Step {
    kMine,    // the next key block holds keys for this warpgroup
    kOthers,  // it does not, but passes through the pipeline
    kEnd,     // there is none
  };

  // ---- The stream of steps ----

  // `attend` goes from a first block on through whole tiles, to the first step that is not this
  // warpgroup's, which it leaves in `step`.
  template <class Attend>
  __device__ __forceinline__ void run_with(const Attend& attend) {
    Tile r;
    ping_pong_.open();
    for (;;) {
      Step step = next_step();
      if (step == Step::kEnd) break;
      if (step == Step::kOthers) {
        pass_block();
        continue;
      }
      attend(r, step);
      last_product(r, step);
      if (step == Step::kEnd) break;
    }
    stages_.release_delayed_v();
    ping_pong_.close();
  }

  // Moves to the next key block, of this tile or of the next one.
  __device__ __forceinline__ Step next_step() {
    if (blocks_left_ == 0) {
      // Read as a whole, whatever it says: one wait for all of it.
      const WorkTileOf<C>& item = smem_.work_tiles[stages_.wait_for_work_tile()];
      blocks_left_ = item.num_blocks;
      if constexpr (C.always_splits()) {
        mine_ = WorkTileBlocks<C>(params_).blocks_of(item.first_row, item.queries, item.keys.count,
                                                     item.first_key, item.num_blocks);
      } else {
        mine_ = item.mine[warpgroup_];
      }
      if constexpr (C.e4m3) take_longer_reference();
      if constexpr (C.dequantizes() && !C.rescales_queries())
        score_.set_scale(item.place.key_scale);
      if constexpr (C.short_steps()) {
        const int left = params_.output.pack.rows(item.queries.count) - first_row_of(item);
        live_rows_ = left <= 0 ? 0 : left <= kRowDistance ? 1 : 2;
      }
      stages_.take_work_tile();
      if (blocks_left_ == 0) return Step::kEnd;
      stages_.take_q();
    }
    --blocks_left_;
    return blocks_left_ < mine_.count ? Step::kMine : Step::kOthers;
  }

  // From a first block on, through whole tiles, to the first step that is not this warpgroup's. The
  // outer loop is for lost scores, for tiles' first steps that are compiled apart, and for ends of
  // parts of O: so rare code does not lie between the hot code's ends.
  __device__ __forceinline__ void attend(Tile& r, Step& step) {
    first_block(r);
    for (;;) {
      if (C.starts_apart() && blocks_left_ == 0) {
        if (!start_next_tile(step)) return;
        block(r, true);
      }
      while (!C.guarded || (blocks_left_ > (C.starts_apart() ? 0 : -1) &&
                            !promoted_.promotes_behind(blocks_left_))) {
        const bool starts_tile = !C.starts_apart() && blocks_left_ == 0;
        if (!starts_tile) {
          --blocks_left_;  // having begun with a tile, a warpgroup goes through with it
        } else {
          if (!start_next_tile(step)) return;
        }
        block(r, starts_tile);
      }
      if (!C.e4m3 || blocks_left_ < 0) recompute_block(r);
      if (promoted_.promotes_behind(blocks_left_)) promote_output(r);
    }
  }

  // Whether it is this warpgroup's from the first block on.
  __device__ __forceinline__ bool start_next_tile(Step& step) {
    step = next_step();
    if (step != Step::kMine) return false;
    receive_q();
    return true;
  }

  // Once a tile.
  __device__ __forceinline__ void receive_q() {
    stages_.wait_for_q();
    if constexpr (C.rescales_queries()) {
      float scales[kRowsPerThread] = {};
      QueryRescaler<C>::fit(stages_.q_of_warp(), live_rows(), scales);
      score_.set_scales(smem_.work_tiles[stages_.item()].place.key_scale, scales);
      ptx::fence_proxy_async();  // products read what these threads have stored
      ptx::bar_sync(int(NamedBarrier::kQueries) + warpgroup_, kWarpgroupSize);
    }
  }

  // ---- The steps ----

  // Scores alone: no block before left weights to multiply.
  __device__ __forceinline__ void first_block(Tile& r) {
    const KvState k = stages_.next_kv();
    const uint32_t q_low = stages_.q_operand();
    const uint32_t k_low = stages_.k_operand(k);
    receive_q();
    stages_.wait_for(k);
    fence_cp_async();
    ping_pong_.wait();
    ptx::wgmma_fence();
    tile::issue_abt<C.input(), kQ, kK>(r.scores, q_low, k_low);
    ptx::wgmma_commit_group();
    ping_pong_.pass();
    read_scales(k);
    ptx::wgmma_wait_group<0>();
    stages_.release_kv(k);
    release_spent_q();
    stages_.release_delayed_v();
    stages_.expect_v();
    score_.prepare(r.scores);
    StepResult result;
    online_softmax(r, true, result);
    r.add_sums(result);
    r.template pack<0, kScores>();
    start_output(r);
  }

  // Algorithm 2, lines 8 to 14.
  __device__ __forceinline__ void block(Tile& r, bool starts_tile) {
    const KvState k = stages_.next_kv();
    const KvState v = stages_.next_kv();
    stages_.wait_for(k, v);
    fence_cp_async();
    if (!starts_tile && promoted_.promotes_under(blocks_left_)) {
      issue_products<true>(r, k, v);
    } else {
      issue_products<false>(r, k, v);
    }
    read_scales(k);
    ptx::wgmma_wait_group<1>();  // the scores are there, P V is still at work
    stages_.release_kv(k);
    release_spent_q();

    score_.prepare(r.scores);
    const bool guarded = C.guarded && !(C.starts_apart() && starts_tile) &&
                         blocks_left_ < mine_.online_from && !mine_.edge.hides_left(block_begin());
    const RowState finished = r.rows;
    StepResult result;
    if (guarded) {
      guarded_softmax(r, result, [&] { wait_for_output(v); });
    } else {
      online_softmax(r, starts_tile, result);
      if (kEarly > 0) wait_for_output(v);
    }
    if (kEarly == 0) wait_for_output(v);

    // The output is at rest: bring it to the new reference, or hand it over if its tile is
    // finished.
    if (guarded) {
      if (guard_fires<Score>(result)) correct(r, result);
    } else {
      if (starts_tile) {
        finish_tile(r, finished);
        start_output(r);
      } else {
        rescale(r, result);
      }
      r.template pack<0, kEarly>();
    }
    r.add_sums(result);
    r.template pack<kEarly, kScores>();
  }

  // Weights alone: the next block is not this warpgroup's, or there is none.
  __device__ __forceinline__ void last_product(Tile& r, Step next) {
    if (next == Step::kOthers) {
      ping_pong_.wait();
      stages_.release_unread(stages_.next_kv());
    }
    const KvState v = stages_.next_kv();
    const uint32_t v_low = stages_.v_operand(v);
    stages_.wait_for(v);
    fence_cp_async();
    ptx::wgmma_fence();
    issue_output(r, v_low);
    ptx::wgmma_commit_group();
    if (next == Step::kOthers) ping_pong_.pass();
    wait_for_output(v);
    stages_.expect_no_v();
    finish_tile(r, r.rows);
    if (next == Step::kOthers) end_passed_block();
  }

  // Another warpgroup's block.
  __device__ __forceinline__ void pass_block() {
    ping_pong_.wait();
    ping_pong_.pass();
    stages_.release_unread(stages_.next_kv());
    stages_.release_delayed_v();
    end_passed_block();
  }

  // Its V is still to come; if the whole tile was others', its Q and work tile are released unused.
  __device__ __forceinline__ void end_passed_block() {
    stages_.expect_v();
    if (blocks_left_ == 0) {
      stages_.wait_for_q();
      stages_.release_q();
      stages_.release_work_tile(stages_.item());
    }
  }

  // ---- Products ----

  // Where a part of O ends, that is seen to while Q K^T runs.
  template <bool Promotes>
  __device__ __forceinline__ void issue_products(Tile& r, KvState k, KvState v) {
    const uint32_t q_low = stages_.q_operand();
    const uint32_t k_low = stages_.k_operand(k);
    const uint32_t v_low = stages_.v_operand(v);
    ping_pong_.wait();
    ptx::wgmma_fence();
    tile::issue_abt<C.input(), kQ, kK>(r.scores, q_low, k_low);
    ptx::wgmma_commit_group();
    if constexpr (Promotes) {
      promote_output(r);
      ptx::wgmma_fence();
    }
    issue_output(r, v_low);
    ptx::wgmma_commit_group();
    ping_pong_.pass();
  }

  // The newest part of O joins the earlier ones.
  __device__ __forceinline__ void promote_output(Tile& r) {
    if constexpr (C.e4m3) promoted_.promote(r.output, r.rows, promoted_sum());
  }

  __device__ __forceinline__ void issue_output(Tile& r, uint32_t v) {
    if constexpr (C.e4m3) {
      tile::issue_abt<kV>(r.output, r.weights, v, !output_starts_);
    } else {
      tile::issue_ab<C.input(), kV>(r.output, r.weights, v, !output_starts_);
    }
    output_starts_ = false;
  }

  // Until the output and the weights may be touched again, and V loaded over.
  __device__ __forceinline__ void wait_for_output(KvState v) {
    ptx::wgmma_wait_group<0>();
    stages_.release_kv(v);
  }

  // A tile's first product assigns where registers allow it: no zeros to write, some 100 clocks.
  __device__ __forceinline__ void start_output(Tile& r) {
    if constexpr (C.e4m3) {
      output_starts_ = true;
      promoted_.start(blocks_left_);
      if constexpr (C.tracks_max()) stop_at(mine_.online_from);
    } else if constexpr (C.short_tile_change()) {
      output_starts_ = true;
    } else {
#pragma unroll
      for (float& o : r.output) o = 0.0f;
    }
  }

  // The next tile's work tile is the current one by now.
  __device__ __forceinline__ void finish_tile(Tile& r, const RowState& rows) {
    const uint32_t work_tile_stage = stages_.work_tile_before();
    const WorkTileOf<C>& item = smem_.work_tiles[work_tile_stage];
    const int first_row = first_row_of(item);
    if constexpr (C.e4m3) {
      promoted_.add_to(r.output, promoted_sum());
      store_rows<C.output(), C.general()>(params_.output, item.queries, first_row, r.output, rows,
                                          values_of(item, smem_.e4m3.tiles[work_tile_stage]));
    } else {
      store_tile<C>(params_, item, first_row, r.output, rows);
    }
    stages_.release_work_tile(work_tile_stage);
  }

  __device__ __forceinline__ DescaledValues values_of(const WorkTileOf<C>& item,
                                                      const TileScales& scales) const {
    const ChannelMeans<const float>& mean = params_.e4m3.value_mean;
    const int kv_head = item.queries.pack / params_.packs_per_kv_head;
    return {scales.value, mean.data ? mean.at(sequence_of<C>(item), kv_head) : nullptr,
            params_.output.o.columns};
  }

  // Between copies by threads, which are of the generic proxy, and products, which read by the
  // async one. The threads that copy do not wait for their copies, so they cannot fence behind
  // them; but a fence anywhere on the way from a write to its reader orders the two (PTX ISA,
  // "causality order"), and the stage's barrier, which this thread has just waited for, is on that
  // way.
  __device__ __forceinline__ void fence_cp_async() const {
    if constexpr (C.may_use_cp_async()) {
      if (uses_cp_async<C>(params_)) ptx::fence_proxy_async();
    }
  }

  // The tile's last scores were the last use of its Q.
  __device__ __forceinline__ void release_spent_q() {
    if (blocks_left_ == 0) stages_.release_q();
  }

  static constexpr tile::TileLayout kQ = C.q_tile(), kK = C.k_tile(), kV = C.v_tile();

  const PingPong<C.consumers(), C.ping_pong> ping_pong_;
};

}  // namespace fa3::hopper
