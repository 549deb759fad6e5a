// SPDX-License-Identifier: Apache-2.0
// The consumer: one warpgroup, 64 query rows of each tile (paper, Algorithm 1, "consumer", with the
// two-stage pipeline of Algorithm 2).
//
// The ring of K and V carries, for each key block, its K and then the V of the block before it: what a
// step multiplies. A step issues S = Q K^T of its block and O += P V of the block before, and computes
// the softmax of S while P V runs. Steps run on across tiles: the last P V of a tile shares its step
// with the first Q K^T of the next, and the finished tile leaves in the middle of that step. Blocks
// that no row of this warpgroup sees pass by unread. Next: followed_rows.cuh, cuda/epilogue.cuh.
#pragma once

#include "engine/cuda/epilogue.cuh"
#include "engine/hopper/consumer_softmax.cuh"
#include "engine/hopper/fit_queries.cuh"
#include "engine/hopper/item_blocks.cuh"
#include "engine/hopper/piece/turns.cuh"
#include "engine/hopper/store_tile.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
class Consumer : protected ConsumerSoftmax<C> {
  using Base = ConsumerSoftmax<C>;

 public:
  __device__ __forceinline__ Consumer(const ForwardParams& params, SmemPlan<C>& smem,
                                      SmemAddresses<C> at, int warpgroup)
      : Base(params, smem, at, warpgroup), turns_(warpgroup) {}

  __device__ __forceinline__ void run() {
    run_with([&](Tile& r, Step& step) { attend(r, step); });
  }

 protected:
  using typename Base::Score;
  using typename Base::StepResult;
  using typename Base::Tile;
  using KvCursor = typename ConsumerSlots<C>::KvCursor;
  using Base::block_begin;
  using Base::blocks_left_;
  using Base::correct;
  using Base::earlier_;
  using Base::earlier_parts;
  using Base::first_row_of;
  using Base::kEarly;
  using Base::kScores;
  using Base::live_rows;
  using Base::live_rows_;
  using Base::mine_;
  using Base::output_starts_;
  using Base::params_;
  using Base::read_scales;
  using Base::redo_block;
  using Base::rescale;
  using Base::score_;
  using Base::slots_;
  using Base::smem_;
  using Base::stop_at;
  using Base::take_longer_reference;
  using Base::warpgroup_;
  using Base::weigh_guarded;
  using Base::weigh_ordinary;

  enum class Step {
    kMine,    // the next key block holds keys for this warpgroup
    kOthers,  // it does not, but passes through the ring
    kEnd,     // there is none
  };

  // ---- The stream of steps ----

  // `attend` goes from a first block on through whole tiles, to the first step that is not this
  // warpgroup's, which it leaves in `step`.
  template <class Attend>
  __device__ __forceinline__ void run_with(const Attend& attend) {
    Tile r;
    turns_.open();
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
    slots_.release_owed_v();
    turns_.close();
  }

  // Moves to the next key block, of this tile or of the next one.
  __device__ __forceinline__ Step next_step() {
    if (blocks_left_ == 0) {
      // Read as a whole, whatever it says: one wait for all of it.
      const ItemOf<C>& item = smem_.items[slots_.wait_for_item()];
      blocks_left_ = item.num_blocks;
      if constexpr (C.decodes()) {
        mine_ = ItemBlocks<C>(params_).blocks_of(item.first_row, item.queries, item.keys.count,
                                                 item.first_key, item.num_blocks);
      } else {
        mine_ = item.mine[warpgroup_];
      }
      if constexpr (C.e4m3) take_longer_reference();
      if constexpr (C.widens() && !C.fits_queries()) score_.set_scale(item.place.key_scale);
      if constexpr (C.short_steps()) {
        const int left = params_.output.pack.rows(item.queries.count) - first_row_of(item);
        live_rows_ = left <= 0 ? 0 : left <= kRowDistance ? 1 : 2;
      }
      slots_.take_item();
      if (blocks_left_ == 0) return Step::kEnd;
      slots_.take_q();
    }
    --blocks_left_;
    return blocks_left_ < mine_.count ? Step::kMine : Step::kOthers;
  }

  // From a first block on, through whole tiles, to the first step that is not this warpgroup's. The
  // outer loop is for lost scores, for tiles' first steps that are compiled apart, and for ends of parts
  // of O: so rare code does not lie between the hot code's ends.
  __device__ __forceinline__ void attend(Tile& r, Step& step) {
    first_block(r);
    for (;;) {
      if (C.starts_apart() && blocks_left_ == 0) {
        if (!start_next_tile(step)) return;
        block(r, true);
      }
      while (!C.guarded || (blocks_left_ > (C.starts_apart() ? 0 : -1) &&
                            !earlier_.part_ends_behind(blocks_left_))) {
        const bool starts_tile = !C.starts_apart() && blocks_left_ == 0;
        if (!starts_tile) {
          --blocks_left_;  // having begun with a tile, a warpgroup goes through with it
        } else {
          if (!start_next_tile(step)) return;
        }
        block(r, starts_tile);
      }
      if (!C.e4m3 || blocks_left_ < 0) redo_block(r);
      if (earlier_.part_ends_behind(blocks_left_)) end_part(r);
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
    slots_.wait_for_q();
    if constexpr (C.fits_queries()) {
      float scales[kRowsPerThread] = {};
      QueryFitter<C>::fit(slots_.q_of_warp(), live_rows(), scales);
      score_.set_scales(smem_.items[slots_.item()].place.key_scale, scales);
      ptx::fence_proxy_async();  // products read what these threads have stored
      ptx::bar_sync(int(NamedBarrier::kQueries) + warpgroup_, kWarpgroupSize);
    }
  }

  // ---- The steps ----

  // Scores alone: no block before left weights to multiply.
  __device__ __forceinline__ void first_block(Tile& r) {
    const KvCursor k = slots_.next_kv();
    const uint32_t q_low = slots_.q_operand();
    const uint32_t k_low = slots_.k_operand(k);
    receive_q();
    slots_.wait_for(k);
    fence_gathered();
    turns_.take();
    ptx::wgmma_fence();
    tile::issue_abt<C.input(), kQ, kK>(r.scores, q_low, k_low);
    ptx::wgmma_commit_group();
    turns_.give();
    read_scales(k);
    ptx::wgmma_wait_group<0>();
    slots_.release_kv(k);
    release_spent_q();
    slots_.release_owed_v();
    slots_.owe_v();
    score_.prepare(r.scores);
    StepResult result;
    weigh_ordinary(r, true, result);
    r.add_sums(result);
    r.template pack<0, kScores>();
    start_output(r);
  }

  // Algorithm 2, lines 8 to 14.
  __device__ __forceinline__ void block(Tile& r, bool starts_tile) {
    const KvCursor k = slots_.next_kv();
    const KvCursor v = slots_.next_kv();
    slots_.wait_for(k, v);
    fence_gathered();
    if (!starts_tile && earlier_.part_ends_under(blocks_left_)) {
      issue_products<true>(r, k, v);
    } else {
      issue_products<false>(r, k, v);
    }
    read_scales(k);
    ptx::wgmma_wait_group<1>();  // the scores are there, P V is still at work
    slots_.release_kv(k);
    release_spent_q();

    score_.prepare(r.scores);
    const bool guarded = C.guarded && !(C.starts_apart() && starts_tile) &&
                         blocks_left_ < mine_.ordinary_from &&
                         !mine_.edge.hides_left(block_begin());
    const RowState finished = r.rows;
    StepResult result;
    if (guarded) {
      weigh_guarded(r, result, [&] { wait_for_output(v); });
    } else {
      weigh_ordinary(r, starts_tile, result);
      if (kEarly > 0) wait_for_output(v);
    }
    if (kEarly == 0) wait_for_output(v);

    // The output is at rest: bring it to the new reference, or hand it over if its tile is finished.
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
      turns_.take();
      slots_.release_unread(slots_.next_kv());
    }
    const KvCursor v = slots_.next_kv();
    const uint32_t v_low = slots_.v_operand(v);
    slots_.wait_for(v);
    fence_gathered();
    ptx::wgmma_fence();
    issue_output(r, v_low);
    ptx::wgmma_commit_group();
    if (next == Step::kOthers) turns_.give();
    wait_for_output(v);
    slots_.owe_no_v();
    finish_tile(r, r.rows);
    if (next == Step::kOthers) end_passed_block();
  }

  // Another warpgroup's block.
  __device__ __forceinline__ void pass_block() {
    turns_.take();
    turns_.give();
    slots_.release_unread(slots_.next_kv());
    slots_.release_owed_v();
    end_passed_block();
  }

  // Its V is still to come; if the whole tile was others', its Q and record are released unused.
  __device__ __forceinline__ void end_passed_block() {
    slots_.owe_v();
    if (blocks_left_ == 0) {
      slots_.wait_for_q();
      slots_.release_q();
      slots_.release_item(slots_.item());
    }
  }

  // ---- Products ----

  // Where a part of O ends, that is seen to while Q K^T runs.
  template <bool PartEnds>
  __device__ __forceinline__ void issue_products(Tile& r, KvCursor k, KvCursor v) {
    const uint32_t q_low = slots_.q_operand();
    const uint32_t k_low = slots_.k_operand(k);
    const uint32_t v_low = slots_.v_operand(v);
    turns_.take();
    ptx::wgmma_fence();
    tile::issue_abt<C.input(), kQ, kK>(r.scores, q_low, k_low);
    ptx::wgmma_commit_group();
    if constexpr (PartEnds) {
      end_part(r);
      ptx::wgmma_fence();
    }
    issue_output(r, v_low);
    ptx::wgmma_commit_group();
    turns_.give();
  }

  // The newest part of O joins the earlier ones.
  __device__ __forceinline__ void end_part(Tile& r) {
    if constexpr (C.e4m3) earlier_.take_twice(r.output, r.rows, earlier_parts());
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
  __device__ __forceinline__ void wait_for_output(KvCursor v) {
    ptx::wgmma_wait_group<0>();
    slots_.release_kv(v);
  }

  // A tile's first product assigns where registers allow it: no zeros to write, some 100 clocks.
  __device__ __forceinline__ void start_output(Tile& r) {
    if constexpr (C.e4m3) {
      output_starts_ = true;
      earlier_.start(blocks_left_);
      if constexpr (C.follows()) stop_at(mine_.ordinary_from);
    } else if constexpr (C.short_tile_change()) {
      output_starts_ = true;
    } else {
#pragma unroll
      for (float& o : r.output) o = 0.0f;
    }
  }

  // The next tile's record is the current one by now.
  __device__ __forceinline__ void finish_tile(Tile& r, const RowState& rows) {
    const uint32_t item_slot = slots_.item_before();
    const ItemOf<C>& item = smem_.items[item_slot];
    const int first_row = first_row_of(item);
    if constexpr (C.e4m3) {
      earlier_.add_to(r.output, earlier_parts());
      store_rows<C.output(), C.general()>(params_.output, item.queries, first_row, r.output, rows,
                                          values_of(item, smem_.e4m3.tiles[item_slot]));
    } else {
      store_tile<C>(params_, item, first_row, r.output, rows);
    }
    slots_.release_item(item_slot);
  }

  __device__ __forceinline__ DescaledValues values_of(const ItemOf<C>& item,
                                                      const TileScales& scales) const {
    const ChannelMeans<const float>& mean = params_.e4m3.value_mean;
    const int kv_head = item.queries.pack / params_.packs_per_kv_head;
    return {scales.value, mean.data ? mean.at(sequence_of<C>(item), kv_head) : nullptr,
            params_.output.o.columns};
  }

  // Between copies by threads, which are of the generic proxy, and products, which read by the async
  // one. The threads that copy do not wait for their copies, so they cannot fence behind them; but a
  // fence anywhere on the way from a write to its reader orders the two (PTX ISA, "causality order"),
  // and the slot's barrier, which this thread has just waited for, is on that way.
  __device__ __forceinline__ void fence_gathered() const {
    if constexpr (C.may_gather()) {
      if (gathers<C>(params_)) ptx::fence_proxy_async();
    }
  }

  // The tile's last scores were the last use of its Q.
  __device__ __forceinline__ void release_spent_q() {
    if (blocks_left_ == 0) slots_.release_q();
  }

  static constexpr tile::TileLayout kQ = C.q_tile(), kK = C.k_tile(), kV = C.v_tile();

  const Turns<C.consumers(), C.ping_pong> turns_;
};

}  // namespace fa3::hopper
