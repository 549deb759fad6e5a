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
#include "engine/cuda/score.cuh"
#include "engine/cuda/score_again.cuh"
#include "engine/hopper/partial_sums.cuh"
#include "engine/hopper/piece/smem_plan.cuh"
#include "engine/hopper/piece/turns.cuh"
#include "engine/hopper/ptx/fence.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/store_tile.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
class Consumer {
 public:
  __device__ __forceinline__ Consumer(const ForwardParams& params, SmemPlan<C>& smem,
                                      SmemAddresses<C> at, int warpgroup)
      : params_(params),
        smem_(smem),
        at_(at),
        q_ring_(at.q_ring(warpgroup)),
        warpgroup_(warpgroup),
        turns_(warpgroup),
        score_(score_of(params)) {}

  __device__ __forceinline__ void run() {
    Registers r;
    turns_.open();
    for (;;) {
      Step step = next_step();
      if (step == Step::kEnd) break;
      if (step == Step::kOthers) {
        pass_block();
        continue;
      }
      if constexpr (C.e4m3) {
        attend_in_parts(r, step);
      } else {
        attend(r, step);
      }
      last_product(r, step);
      if (step == Step::kEnd) break;
    }
    release_owed_v();
    turns_.close();
  }

 private:
  static constexpr tile::TileLayout kQ = C.q_tile(), kK = C.k_tile(), kV = C.v_tile();
  static constexpr int kScores = C.block_n / 2;  // of a thread
  static constexpr int kEarly = C.early_weights();
  // From so many corrections on, a warp takes the rest of its tile by ordinary steps: a correction
  // costs more than an ordinary step. Measured: docs/performance-hopper.md.
  static constexpr int kMostCorrections = 3;

  using CappedScore16 = std::conditional_t<C.widens(), CappedScoreOf<ScaledSoftCap>, CappedScore>;
  using Score16 = std::conditional_t<C.capped(), CappedScore16, ScaledScore>;
  using Score8 = std::conditional_t<C.capped(), CappedDescaledScore<C.scale_groups()>,
                                    DescaledScore<C.scale_groups()>>;
  using Score = std::conditional_t<C.e4m3, Score8, WideWeights<Score16, C.block_n>>;
  using StepResult = typename Score::Result;
  using KvCursor = RingCursor<C.kv_slots>;

  struct NoEarlierParts {};

  // A thread's share of a tile. Apart from the members, which the compiler only keeps in registers if
  // no array stands beside them.
  struct Registers {
    float scores[kScores];              // S, then P
    tile::Weights<kV, C.e4m3> weights;  // P of the block before, as an operand
    float output[C.head_dim_v / 2];     // O; of e4m3 products its newest part
    RowState rows;
  };

  enum class Step {
    kMine,    // the next key block holds keys for this warpgroup
    kOthers,  // it does not, but passes through the ring
    kEnd,     // there is none
  };

  // ---- The stream of steps ----

  // Moves to the next key block, of this tile or of the next one.
  __device__ __forceinline__ Step next_step() {
    if (blocks_left_ == 0) {
      at_.item_ring().wait_full(item_.next());
      // Read as a whole, whatever it says: one wait for all of it.
      const ItemOf<C>& item = smem_.items[item_.next().slot()];
      blocks_left_ = item.num_blocks;
      mine_ = item.mine[warpgroup_];
      if constexpr (C.e4m3) take_longer_reference();
      if constexpr (C.widens()) score_.set_scale(item.place.key_scale);
      item_.advance();
      if (blocks_left_ == 0) return Step::kEnd;
      q_.advance();
    }
    --blocks_left_;
    return blocks_left_ < mine_.count ? Step::kMine : Step::kOthers;
  }

  // e4m3 leaves less room above the reference: long runs take it from more keys that all rows see.
  // Measured: without this, causal tiles of 16k keys at 64 columns take 1.2 times as long. Where 256 keys
  // are little more than a block, shorter runs gain too: causal 1k 5%, 2k 3%.
  __device__ __forceinline__ void take_longer_reference() {
    constexpr int kLongRunKeys = C.block_n > 128 ? 512 : 2048, kKeys = 256;
    if (mine_.count < kLongRunKeys / C.block_n) return;
    const int from = mine_.masked_from - kKeys / C.block_n;
    if (from < mine_.ordinary_from) mine_.ordinary_from = from;
  }

  // From a first block on, through whole tiles, to the first step that is not this warpgroup's. The
  // outer loop is for lost scores: so rare code does not lie between the hot code's ends.
  __device__ __forceinline__ void attend(Registers& r, Step& step) {
    first_block(r);
    for (;;) {
      while (!C.guarded || blocks_left_ >= 0) {
        const bool starts_tile = blocks_left_ == 0;
        if (!starts_tile) {
          --blocks_left_;  // having begun with a tile, a warpgroup goes through with it
        } else {
          step = next_step();
          if (step != Step::kMine) return;
          q_ring_.wait_full(q_);
        }
        block(r, starts_tile);
      }
      redo_block(r);
    }
  }

  // The same of e4m3, whose O is a sum of parts. The inner loop is left where a part ends: adding it up
  // is rare code too.
  __device__ __forceinline__ void attend_in_parts(Registers& r, Step& step) {
    first_block(r);
    int part_end = first_part_end();
    for (;;) {
      if (C.starts_apart() && blocks_left_ == 0) {
        if (!start_next_tile(step)) return;
        block(r, true);
        part_end = first_part_end();
      } else {
        do {
          const bool starts_tile = !C.starts_apart() && blocks_left_ == 0;
          if (!starts_tile) {
            --blocks_left_;
          } else {
            if (!start_next_tile(step)) return;
            part_end = first_part_end();
          }
          block(r, starts_tile);
        } while (blocks_left_ > (C.starts_apart() ? 0 : -1) && blocks_left_ != part_end);
      }
      if (blocks_left_ < 0) redo_block(r);
      if (blocks_left_ == part_end) {
        earlier_.take_twice(r.output, r.rows, earlier_parts());
        part_end -= C.part_blocks();
      }
    }
  }

  // Whether it is this warpgroup's from the first block on.
  __device__ __forceinline__ bool start_next_tile(Step& step) {
    step = next_step();
    if (step != Step::kMine) return false;
    q_ring_.wait_full(q_);
    return true;
  }

  // A tile's first part is half as long as the others, so that sums run from -A/2 to A/2.
  __device__ __forceinline__ int first_part_end() const {
    return blocks_left_ - C.part_blocks() / 2;
  }

  __device__ __forceinline__ uint32_t earlier_parts() const {
    return at_.earlier_parts(consumer_warp(), thread_in_block() % kWarpSize);
  }

  // ---- The steps ----

  // Scores alone: no block before left weights to multiply.
  __device__ __forceinline__ void first_block(Registers& r) {
    const KvCursor k = next_kv();
    const uint32_t q_low = q_operand();
    const uint32_t k_low = k_operand(k);
    q_ring_.wait_full(q_);
    at_.kv_ring().wait_full(k);
    fence_gathered();
    turns_.take();
    ptx::wgmma_fence();
    tile::issue_abt<C.input(), kQ, kK>(r.scores, q_low, k_low);
    ptx::wgmma_commit_group();
    turns_.give();
    read_scales(k);
    ptx::wgmma_wait_group<0>();
    release_kv(k);
    release_spent_q();
    release_owed_v();
    owes_v_ = true;
    score_.prepare(r.scores);
    StepResult result;
    weigh_ordinary(r, true, result);
    add_sums(r, result);
    pack<0, kScores>(r);
    start_output(r);
  }

  // Algorithm 2, lines 8 to 14.
  __device__ __forceinline__ void block(Registers& r, bool starts_tile) {
    const KvCursor k = next_kv();
    const KvCursor v = next_kv();
    wait_for(k, v);
    fence_gathered();
    issue_products(r, k, v);
    read_scales(k);
    ptx::wgmma_wait_group<1>();  // the scores are there, P V is still at work
    release_kv(k);
    release_spent_q();

    score_.prepare(r.scores);
    const bool guarded =
        C.guarded && blocks_left_ < mine_.ordinary_from && !mine_.edge.hides_left(block_begin());
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
      pack<0, kEarly>(r);
    }
    add_sums(r, result);
    pack<kEarly, kScores>(r);
  }

  // Weights alone: the next block is not this warpgroup's, or there is none.
  __device__ __forceinline__ void last_product(Registers& r, Step next) {
    if (next == Step::kOthers) {
      turns_.take();
      release_unread(next_kv());
    }
    const KvCursor v = next_kv();
    const uint32_t v_low = v_operand(v);
    at_.kv_ring().wait_full(v);
    fence_gathered();
    ptx::wgmma_fence();
    issue_output(r, v_low);
    ptx::wgmma_commit_group();
    if (next == Step::kOthers) turns_.give();
    wait_for_output(v);
    owes_v_ = false;
    finish_tile(r, r.rows);
    if (next == Step::kOthers) end_passed_block();
  }

  // Another warpgroup's block.
  __device__ __forceinline__ void pass_block() {
    turns_.take();
    turns_.give();
    release_unread(next_kv());
    release_owed_v();
    end_passed_block();
  }

  // Its V is still to come; if the whole tile was others', its Q and record are released unused.
  __device__ __forceinline__ void end_passed_block() {
    owes_v_ = true;
    if (blocks_left_ == 0) {
      q_ring_.wait_full(q_);
      if (is_lane_0()) q_ring_.release(q_.slot());
      release_item(item_.slot());
    }
  }

  // ---- Products ----

  __device__ __forceinline__ void issue_products(Registers& r, KvCursor k, KvCursor v) {
    const uint32_t q_low = q_operand();
    const uint32_t k_low = k_operand(k);
    const uint32_t v_low = v_operand(v);
    turns_.take();
    ptx::wgmma_fence();
    tile::issue_abt<C.input(), kQ, kK>(r.scores, q_low, k_low);
    ptx::wgmma_commit_group();
    issue_output(r, v_low);
    ptx::wgmma_commit_group();
    turns_.give();
  }

  __device__ __forceinline__ void issue_output(Registers& r, uint32_t v) {
    if constexpr (C.e4m3) {
      tile::issue_abt<kV>(r.output, r.weights, v, !output_starts_);
    } else {
      tile::issue_ab<C.element, kV>(r.output, r.weights, v, !output_starts_);
    }
    output_starts_ = false;
  }

  // Descriptors, to be at hand before the turn comes: what follows it is time without products.
  __device__ __forceinline__ uint32_t q_operand() const {
    return uniform(
        tile::k_major_low(at_.q(q_.slot()) + warpgroup_ * kRowsPerWarpgroup * kQ.row_bytes()));
  }
  __device__ __forceinline__ uint32_t k_operand(KvCursor k) const {
    return tile::k_major_low(at_.kv(uniform_slot(k.slot())));
  }
  __device__ __forceinline__ uint32_t v_operand(KvCursor v) const {
    const uint32_t address = at_.kv(uniform_slot(v.slot()));
    return C.e4m3 ? tile::k_major_low(address) : tile::mn_major_low(kV, address);
  }

  // Until the output and the weights may be touched again, and V loaded over.
  __device__ __forceinline__ void wait_for_output(KvCursor v) {
    ptx::wgmma_wait_group<0>();
    release_kv(v);
  }

  // A tile's first product assigns where registers allow it: no zeros to write, some 100 clocks.
  __device__ __forceinline__ void start_output(Registers& r) {
    if constexpr (C.e4m3) {
      output_starts_ = true;
      earlier_.clear();
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
      const float query = smem_.e4m3.tiles[item_.slot()].query[warpgroup_];
      const uint32_t scales = at_.key_scales(k.slot());
#pragma unroll
      for (int group = 0; group < Score::kGroups; ++group) {
        float key_and_boost[2];
        ptx::ld_shared_f32x2(scales + group * uint32_t{sizeof(KeyScales)}, key_and_boost);
        // Not zero: masked scores are -inf.
        score_.factor[group] = fmaxf(query * key_and_boost[0], 0x1p-126f);
        score_.boost[group] = key_and_boost[1];
      }
      __syncwarp();  // every lane has read before lane 0 releases the slot
    }
  }

  static __device__ __forceinline__ Score score_of(const ForwardParams& params) {
    if constexpr (C.e4m3 && C.capped()) {
      return {{}, params.soft_cap};
    } else if constexpr (C.e4m3) {
      return {};
    } else if constexpr (C.capped()) {
      return {{params.soft_cap}};
    } else {
      return {{params.scale_log2}};
    }
  }

  __device__ __forceinline__ void weigh_ordinary(Registers& r, bool starts_tile,
                                                 StepResult& result) {
    if (starts_tile) r.rows = RowState{};
    if (blocks_left_ >= mine_.masked_from || mine_.edge.hides_left(block_begin())) mask(r);
    ordinary_step(r.scores, r.rows, score_, result);
  }

  __device__ __forceinline__ void mask(Registers& r) {
    mask_scores(r.scores, edge(), params_.output.pack, int(thread_in_block() % kWarpgroupSize),
                block_begin());
  }

  // That of two sides is read again at each use: it has no registers.
  __device__ __forceinline__ const auto& edge() const {
    if constexpr (C.general()) {
      return smem_.items[item_.slot()].mine[warpgroup_].edge;
    } else {
      return mine_.edge;
    }
  }

  // Of the current block, counted like the tile's keys.
  __device__ __forceinline__ int block_begin() const {
    return blocks_left_ * C.block_n;
  }

  __device__ __forceinline__ void weigh_guarded(Registers& r, KvCursor v, StepResult& result) {
    guarded_step<kEarly>(r.scores, r.rows, score_, result, [&] {
      if constexpr (kEarly > 0) {
        wait_for_output(v);
        pack<0, kEarly>(r);
      }
    });
  }

  // The guard has fired in this warp: brings its weights back into range, the output with them. Weights
  // that overflowed are gone with their scores: their block counts for nothing until redo_block().
  __device__ __forceinline__ void correct(Registers& r, StepResult& result) {
    ItemOf<C>& item = smem_.items[item_.slot()];
    const unsigned warp = consumer_warp();
    if (is_lane_0()) ++item.corrections[warp];
    __syncwarp();
    if (item.corrections[warp] >= kMostCorrections) mine_.ordinary_from = 0;
    if (can_scale_back(result)) {
      scale_back<Score>(r.scores, r.rows, result);
      rescale(r, result);
      pack<0, kEarly>(r);
    } else {
      result.block_sum[0] = result.block_sum[1] = 0.0f;
      blocks_left_ = ~blocks_left_;
    }
  }

  // Computes the lost scores of the last block again; goes on by ordinary steps.
  __device__ __forceinline__ void redo_block(Registers& r) {
    blocks_left_ = ~blocks_left_;
    mine_.ordinary_from = 0;
    compute_scores_again(r, smem_.items[item_.slot()]);
    score_.prepare(r.scores);
    StepResult result;
    ordinary_step(r.scores, r.rows, score_, result);
    rescale(r, result);
    add_sums(r, result);
    pack<0, kScores>(r);
  }

  __device__ __forceinline__ void compute_scores_again(Registers& r, const ItemOf<C>& item) {
    const int first_row = item.first_row + int(consumer_warp()) * kRowsPerWarp;
    const int first_key = item.keys.begin + item.first_key + blocks_left_ * C.block_n;
    const int kv_head = item.queries.pack / params_.packs_per_kv_head;
    if constexpr (C.redoes_pages()) {
      const PagedKeys& paged = params_.paged;
      if (paged.page_size > 0) {
        using Key = KeyInPages<C.input()>;
        const int32_t* const table = paged.table + item.keys.batch * paged.table_stride;
        score_again<C.input(), C.head_dim>(
            r.scores, params_.q, item.queries.batch,
            LaneRows(params_.output.pack, item.queries, first_row, thread_in_block()),
            Key{params_.k, table, unsigned(paged.page_size), paged.num_pages, kv_head,
                first_key * Key::kRow},
            Key::kRow);
        return;
      }
    }
    score_again<C.input(), C.head_dim>(
        r.scores, params_.q, item.queries.batch,
        LaneRows(params_.output.pack, item.queries, first_row, thread_in_block()),
        params_.k.at<C.input()>(item.keys.batch, kv_head, first_key), params_.k.strides.row);
  }

  // To the reference that the step has left.
  __device__ __forceinline__ void rescale(Registers& r, const StepResult& step) {
    if constexpr (C.e4m3) {
      // Most often nothing moves: then a vote is all.
      if (!__any_sync(0xffffffff, step.rescale[0] != 1.0f || step.rescale[1] != 1.0f)) return;
      earlier_.rescale(step.rescale);
    }
#pragma unroll
    for (int i = 0; i < C.head_dim_v / 2; ++i) r.output[i] *= step.rescale[fragment_row_slot(i)];
    r.rows.sum[0] *= step.rescale[0];
    r.rows.sum[1] *= step.rescale[1];
  }

  __device__ __forceinline__ void add_sums(Registers& r, const StepResult& step) {
    r.rows.sum[0] += step.block_sum[0];
    r.rows.sum[1] += step.block_sum[1];
  }

  // Weights [Begin, End) of the thread become the next product's operand.
  template <int Begin, int End>
  __device__ __forceinline__ void pack(Registers& r) {
    if constexpr (C.e4m3) {
#pragma unroll
      for (int i = Begin / 4; i < End / 4; ++i) {
        r.weights[i / 4][i % 4] =
            pack_e4m3(r.scores[e4m3_element(i, 0)], r.scores[e4m3_element(i, 1)],
                      r.scores[e4m3_element(i, 2)], r.scores[e4m3_element(i, 3)]);
      }
    } else {
#pragma unroll
      for (int i = Begin / 2; i < End / 2; ++i) {
        r.weights[i / 4][i % 4] = pack_pair<C.element>(r.scores[2 * i], r.scores[2 * i + 1]);
      }
    }
  }

  // The next tile's record is the current one by now.
  __device__ __forceinline__ void finish_tile(Registers& r, const RowState& rows) {
    const uint32_t item_slot = item_.previous().slot();
    const ItemOf<C>& item = smem_.items[item_slot];
    const int first_row = item.first_row + int(consumer_warp()) * kRowsPerWarp;
    if constexpr (C.e4m3) {
      earlier_.add_to(r.output, earlier_parts());
      store_rows<C.output(), C.general()>(params_.output, item.queries, first_row, r.output, rows,
                                          values_of(item, smem_.e4m3.tiles[item_slot]));
    } else {
      store_tile<C>(params_, item, first_row, r.output, rows);
    }
    release_item(item_slot);
  }

  __device__ __forceinline__ DescaledValues values_of(const ItemOf<C>& item,
                                                      const TileScales& scales) const {
    const ChannelMeans<const float>& mean = params_.e4m3.value_mean;
    const int kv_head = item.queries.pack / params_.packs_per_kv_head;
    return {scales.value, mean.data ? mean.at(sequence_of<C>(item), kv_head) : nullptr,
            params_.output.o.columns};
  }

  // ---- Who holds what ----

  __device__ __forceinline__ KvCursor next_kv() {
    const KvCursor at = kv_;
    kv_.advance();
    return at;
  }

  // Asks for both before waiting for either: most often both are there.
  __device__ __forceinline__ void wait_for(KvCursor k, KvCursor v) const {
    const bool k_is_full = at_.kv_ring().is_full(k);
    const bool v_is_full = at_.kv_ring().is_full(v);
    if (k_is_full && v_is_full) return;
    at_.kv_ring().wait_full(k);
    at_.kv_ring().wait_full(v);
  }

  // Between copies by threads, which are of the generic proxy, and products, which read by the async
  // one. The threads that copy do not wait for their copies, so they cannot fence behind them; but a
  // fence anywhere on the way from a write to its reader orders the two (PTX ISA, "causality order"),
  // and the slot's barrier, which this thread has just waited for, is on that way.
  __device__ __forceinline__ void fence_gathered() const {
    if constexpr (C.may_gather()) {
      if (params_.gathered.active) ptx::fence_proxy_async();
    }
  }

  __device__ __forceinline__ void release_kv(KvCursor at) {
    if (is_lane_0()) at_.kv_ring().release(at.slot());
  }

  // A slot may only be released once it is full.
  __device__ __forceinline__ void release_unread(KvCursor at) {
    at_.kv_ring().wait_full(at);
    release_kv(at);
  }

  __device__ __forceinline__ void release_owed_v() {
    if (owes_v_) release_unread(next_kv());
    owes_v_ = false;
  }

  // The tile's last scores were the last use of its Q.
  __device__ __forceinline__ void release_spent_q() {
    if (blocks_left_ == 0 && is_lane_0()) q_ring_.release(q_.slot());
  }

  // All lanes have read the record before lane 0 releases it.
  __device__ __forceinline__ void release_item(uint32_t slot) {
    __syncwarp();
    if (is_lane_0()) at_.item_ring().release(slot);
  }

  __device__ __forceinline__ unsigned consumer_warp() const {
    return (thread_in_block() - kWarpgroupSize) / kWarpSize;
  }

  __device__ __forceinline__ bool is_lane_0() const {
    return threadIdx.x % kWarpSize == 0;
  }

  const ForwardParams& params_;
  SmemPlan<C>& smem_;
  const SmemAddresses<C> at_;
  const Ring<C.q_slots> q_ring_;  // this warpgroup's
  const int warpgroup_;
  const Turns<C.consumers(), C.ping_pong> turns_;
  std::conditional_t<C.e4m3 || C.widens(), Score, const Score> score_;

  KvCursor kv_;
  ItemCursor item_ = ItemCursor::before_start();                     // the current tile's
  RingCursor<C.q_slots> q_ = RingCursor<C.q_slots>::before_start();  // the current tile's
  typename ItemOf<C>::Blocks mine_{};  // of the current tile, this warpgroup's
  int blocks_left_ = 0;  // of the current tile after the current block, whose number that is; its
                         // complement (< 0): the current block's scores are lost
  bool owes_v_ = false;  // the V of the block before is still in the ring, and nobody's
  std::conditional_t<C.e4m3, EarlierParts<C>, NoEarlierParts> earlier_;
  bool output_starts_ = false;  // the next product of weights is the tile's first, or a part's
};

}  // namespace fa3::hopper
