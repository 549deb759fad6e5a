// SPDX-License-Identifier: Apache-2.0
// The consumer: one warpgroup, 64 query rows of each tile (paper, Algorithm 1, "consumer", with the
// two-stage pipeline of Algorithm 2).
//
// The ring of K and V carries, for each key block, its K and then the V of the block before it: what a
// step multiplies. A step issues S = Q K^T of its block and O += P V of the block before, and computes
// the softmax of S while P V runs. Steps run on across tiles: the last P V of a tile shares its step
// with the first Q K^T of the next, and the finished tile leaves in the middle of that step. Blocks
// that no row of this warpgroup sees pass by unread. Next: cuda/softmax.cuh, cuda/epilogue.cuh.
#pragma once

#include "engine/cuda/epilogue.cuh"
#include "engine/cuda/mask.cuh"
#include "engine/cuda/peaked_rows.h"
#include "engine/hopper/consumer_score.cuh"
#include "engine/hopper/consumer_slots.cuh"
#include "engine/hopper/fit_queries.cuh"
#include "engine/hopper/item_blocks.cuh"
#include "engine/hopper/lost_scores.cuh"
#include "engine/hopper/partial_sums.cuh"
#include "engine/hopper/piece/turns.cuh"
#include "engine/hopper/store_tile.cuh"
#include "engine/hopper/thread_tile.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const ForwardParams& params, SmemPlan<C>& smem,
                                      SmemAddresses<C> at, int warpgroup)
      : params_(params),
        smem_(smem),
        warpgroup_(warpgroup),
        turns_(warpgroup),
        score_(ScoreHook<C>::make(params)),
        slots_(at, warpgroup) {}

  __device__ __forceinline__ void run() {
    Tile r;
    turns_.open();
    for (;;) {
      Step step = next_step();
      if (step == Step::kEnd) break;
      if (step == Step::kOthers) {
        pass_block();
        continue;
      }
      if constexpr (C.follows() && C.starts_apart()) {
        attend_and_follow_apart(r, step);
      } else if constexpr (C.follows()) {
        attend_and_follow(r, step);
      } else {
        attend(r, step);
      }
      last_product(r, step);
      if (step == Step::kEnd) break;
    }
    slots_.release_owed_v();
    turns_.close();
  }

 private:
  static constexpr tile::TileLayout kQ = C.q_tile(), kK = C.k_tile(), kV = C.v_tile();
  static constexpr int kScores = C.block_n / 2;  // of a thread
  static constexpr int kEarly = C.early_weights();
  // From so many corrections on, a warp takes the rest of its tile by ordinary steps: a correction
  // costs more than an ordinary step. Measured: docs/performance-hopper.md.
  static constexpr int kMostCorrections = 3;
  static constexpr int kFollowed = -1;  // mine_.ordinary_from of a tile whose rows are peaked

  using Tile = ThreadTile<C>;
  using Score = typename ScoreHook<C>::Type;
  using StepResult = typename Score::Result;
  using KvCursor = typename ConsumerSlots<C>::KvCursor;

  struct NoLiveRows {};

  enum class Step {
    kMine,    // the next key block holds keys for this warpgroup
    kOthers,  // it does not, but passes through the ring
    kEnd,     // there is none
  };

  // ---- The stream of steps ----

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

  // e4m3 leaves less room above the reference: long runs take it from more keys that all rows see.
  // Measured: without this, causal tiles of 16k keys at 64 columns take 1.2 times as long. Where 256 keys
  // are little more than a block, or rows see different keys of the first ones, shorter runs gain too:
  // causal 2k 3 to 4%.
  __device__ __forceinline__ void take_longer_reference() {
    constexpr int kLongRunKeys = C.block_n > 128 ? 512 : 2048, kKeys = 256;
    if constexpr (C.follows()) {
      const int long_run = mine_.masked_from < mine_.count ? 512 : kLongRunKeys;
      const int from = mine_.masked_from - kKeys / C.block_n;
      if (mine_.count >= long_run / C.block_n && from < mine_.ordinary_from) {
        mine_.ordinary_from = from > 0 ? from : 0;
      }
    } else {
      if (mine_.count < kLongRunKeys / C.block_n) return;
      const int from = mine_.masked_from - kKeys / C.block_n;
      if (from < mine_.ordinary_from) mine_.ordinary_from = from;
    }
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

  // The same where a look at the rows decides how a tile goes on: by guarded steps, or by those that follow.
  // The loop of steps asks one question, whether it must stop; why, is asked outside of it. attend() is
  // not a case of it, for with it here ptxas compiles other kernels otherwise.
  __device__ __forceinline__ void attend_and_follow(Tile& r, Step& step) {
    first_block(r);
    for (;;) {
      if (blocks_left_ != 0) go_on_or_follow(r);
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
  __device__ __forceinline__ void attend_and_follow_apart(Tile& r, Step& step) {
    first_block(r);
    for (;;) {
      if (!follows()) {
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
      if (follows()) follow(r);
    }
  }

  // Until steps of block() are due, or the next tile.
  __device__ __forceinline__ void go_on_or_follow(Tile& r) {
    for (;;) {
      go_on(r);
      if (!follows()) return;
      follow(r);
      if (blocks_left_ == 0) return;
    }
  }

  // Behind a step at which a loop has stopped, or a first one: what is due here, and the next stop.
  // All warps of the warpgroup come to the look with the same numbers: one gives up guarded steps, or
  // loses scores, behind guarded steps alone, and before the look there are none.
  __device__ __forceinline__ void go_on(Tile& r) {
    if (blocks_left_ < 0) redo_block(r);
    const bool looks = blocks_left_ == mine_.ordinary_from && blocks_left_ > 0;
    const int next_look = blocks_left_ > mine_.ordinary_from ? mine_.ordinary_from : 0;
    if (looks) look_at_rows(r);
    if (earlier_.part_ends_behind(blocks_left_)) end_part(r);
    stop_at(next_look);
  }

  // Or before it, at the end of a part of O; at the latest behind the tile's last block. A part that ends
  // there too is added up by finish_tile().
  __device__ __forceinline__ void stop_at(int look) {
    int stop = look > 0 ? look : 0;
    if constexpr (!C.joins_parts_under_scores()) {
      const int end = earlier_.next_end();
      if (end > stop) stop = end;
    }
    stop_ = stop;
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

  __device__ __forceinline__ uint32_t earlier_parts() const {
    return slots_.at().earlier_parts(consumer_warp(), thread_in_block() % kWarpSize);
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
      weigh_guarded(r, v, result);
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

  // To the next stop, or to lost scores.
  __device__ __forceinline__ void follow(Tile& r) {
    if constexpr (C.follows()) {
      do {
        --blocks_left_;
        followed_block(r);
      } while (blocks_left_ > stop_);
    }
  }

  // As block(), within a tile and below its mask. References move in most steps, so O is multiplied without
  // a vote.
  __device__ __forceinline__ void followed_block(Tile& r) {
    const KvCursor k = slots_.next_kv();
    const KvCursor v = slots_.next_kv();
    slots_.wait_for(k, v);
    if (earlier_.part_ends_under(blocks_left_)) {
      issue_products<true>(r, k, v);
    } else {
      issue_products<false>(r, k, v);
    }
    read_scales(k);
    ptx::wgmma_wait_group<1>();
    slots_.release_kv(k);
    release_spent_q();
    StepResult result;
    followed_step<C.shadow_weights()>(r.scores, r.rows, score_, result);
    const bool lost = outgrown(result);
    wait_for_output(v);
    earlier_.rescale(result.rescale);
    r.rescale_output(result.rescale);
    if (lost) lose_scores(result);
    r.add_sums(result);
    r.template pack<0, kScores>();
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

  // ---- Softmax ----

  // Before the block's K is released: its scales go with it.
  __device__ __forceinline__ void read_scales(KvCursor k) {
    if constexpr (C.e4m3) {
      const float query = smem_.e4m3.tiles[slots_.item()].query[warpgroup_];
      hopper::read_scales(score_, query, slots_.at().key_scales(k.slot()));
      __syncwarp();  // every lane has read before lane 0 releases the slot
    }
  }

  __device__ __forceinline__ void weigh_ordinary(Tile& r, bool starts_tile, StepResult& result) {
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
        ordinary_step<1>(r.scores, r.rows, score_, result);
        return;
      }
    }
    ordinary_step(r.scores, r.rows, score_, result);
  }

  __device__ __forceinline__ void mask(Tile& r) {
    mask_scores(r.scores, edge(), params_.output.pack, int(thread_in_block() % kWarpgroupSize),
                block_begin());
  }

  __device__ __forceinline__ const auto& edge() const {
    if constexpr (C.reads_edge_again()) {
      return smem_.items[slots_.item()].mine[warpgroup_].edge;
    } else {
      return mine_.edge;
    }
  }
  __device__ __forceinline__ int masked_from() const {
    if constexpr (C.e4m3) {
      return smem_.items[slots_.item()].mine[warpgroup_].masked_from;
    } else {
      return mine_.masked_from;
    }
  }

  // Of the current block, counted like the tile's keys.
  __device__ __forceinline__ int block_begin() const {
    return blocks_left_ * C.block_n;
  }

  __device__ __forceinline__ void weigh_guarded(Tile& r, KvCursor v, StepResult& result) {
    guarded_step<kEarly>(r.scores, r.rows, score_, result, [&] {
      if constexpr (kEarly > 0) {
        wait_for_output(v);
        r.template pack<0, kEarly>();
      }
    });
  }

  // Are they peaked, by the keys that all of them have seen? Then the warpgroup follows their maximum for the
  // rest of the tile. Its warps answer together, for they must issue their products together.
  __device__ __forceinline__ void look_at_rows(const Tile& r) {
    if constexpr (C.follows()) {
      const int seen = masked_from() - blocks_left_;
      if (seen <= 0) return;
      constexpr float kBlockLimit = peaked_below(C.block_n, Score::kTop);
      constexpr unsigned kEnough = enough_low_sums(kRowsPerThread * kWarpgroupSize);
      const float limit = kBlockLimit * float(seen);
      const auto low_sums = [&](int row) {
        return ptx::bar_count(int(NamedBarrier::kRows) + warpgroup_, kWarpgroupSize,
                              r.rows.sum[row] < limit);
      };
      if (low_sums(0) + low_sums(1) >= kEnough) mine_.ordinary_from = kFollowed;
    }
  }

  __device__ __forceinline__ bool follows() const {
    return C.follows() && mine_.ordinary_from == kFollowed && blocks_left_ != 0;
  }

  // The guard has fired in this warp: brings its weights back into range, the output with them. Weights
  // that overflowed are gone with their scores: their block counts for nothing until redo_block().
  __device__ __forceinline__ void correct(Tile& r, StepResult& result) {
    ItemOf<C>& item = smem_.items[slots_.item()];
    const unsigned warp = consumer_warp();
    if (is_lane_0()) ++item.corrections[warp];
    __syncwarp();
    if (item.corrections[warp] >= kMostCorrections) mine_.ordinary_from = 0;
    if (can_scale_back(result)) {
      scale_back<Score>(r.scores, r.rows, result);
      rescale(r, result);
      r.template pack<0, kEarly>();
    } else {
      lose_scores(result);
    }
  }

  __device__ __forceinline__ void lose_scores(StepResult& result) {
    result.block_sum[0] = result.block_sum[1] = 0.0f;
    blocks_left_ = ~blocks_left_;
  }

  // Computes the lost scores of the last block again; goes on by ordinary steps, or following.
  __device__ __forceinline__ void redo_block(Tile& r) {
    blocks_left_ = ~blocks_left_;
    if (!C.follows() || mine_.ordinary_from != kFollowed) mine_.ordinary_from = 0;
    const ItemOf<C>& item = smem_.items[slots_.item()];
    compute_scores_again<C>(r.scores, params_, item, first_row_of(item), blocks_left_);
    score_.prepare(r.scores);
    if constexpr (C.follows()) forget_infinite_references(r.rows);
    StepResult result;
    ordinary_step(r.scores, r.rows, score_, result);
    rescale(r, result);
    r.add_sums(result);
    r.template pack<0, kScores>();
  }

  // A followed step has moved them, and multiplied what was before by zero: like rows that have seen no key.
  static __device__ __forceinline__ void forget_infinite_references(RowState& rows) {
#pragma unroll
    for (float& ref : rows.ref) ref = ref == kInfinity ? -kInfinity : ref;
  }

  // To the reference that the step has left.
  __device__ __forceinline__ void rescale(Tile& r, const StepResult& step) {
    if constexpr (C.e4m3 || C.short_steps()) {
      // Most often nothing moves: then a vote is all.
      if (!__any_sync(0xffffffff, step.rescale[0] != 1.0f || step.rescale[1] != 1.0f)) return;
    }
    if constexpr (C.e4m3) earlier_.rescale(step.rescale);
    r.rescale_output(step.rescale);
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

  // Of a thread's rows of the tile, those that are queries'.
  __device__ __forceinline__ int live_rows() const {
    if constexpr (C.short_steps()) return live_rows_;
    return kRowsPerThread;
  }

  // This warp's, of a tile.
  __device__ __forceinline__ int first_row_of(const ItemOf<C>& item) const {
    return item.first_row + int(consumer_warp()) * kRowsPerWarp;
  }

  __device__ __forceinline__ unsigned consumer_warp() const {
    return (thread_in_block() - kWarpgroupSize) / kWarpSize;
  }

  __device__ __forceinline__ bool is_lane_0() const {
    return threadIdx.x % kWarpSize == 0;
  }

  const ForwardParams& params_;
  SmemPlan<C>& smem_;
  const int warpgroup_;
  const Turns<C.consumers(), C.ping_pong> turns_;
  std::conditional_t<C.e4m3 || C.widens(), Score, const Score> score_;

  ConsumerSlots<C> slots_;

  typename ItemOf<C>::Blocks mine_{};  // of the current tile, this warpgroup's
  int blocks_left_ = 0;  // of the current tile after the current block, whose number that is; its
                         // complement (< 0): the current block's scores are lost
  int stop_ = 0;         // where rows may be followed: behind this block loops of steps stop
  std::conditional_t<C.e4m3, EarlierParts<C>, NoEarlierParts> earlier_;
  bool output_starts_ = false;  // the next product of weights is the tile's first, or a part's
  // Of the two rows that each of the warp's threads has of the current tile, how many are queries'.
  std::conditional_t<C.short_steps(), int, NoLiveRows> live_rows_{};
};

}  // namespace fa3::hopper
