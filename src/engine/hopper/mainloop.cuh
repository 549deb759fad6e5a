// SPDX-License-Identifier: Apache-2.0
// The consumer: one warpgroup, 64 query rows of each tile. A step multiplies Q K^T of one key block
// and P V of the block before it, and computes the softmax of the first under the second. Steps run
// on across tiles: the last P V of a tile shares its step with the first Q K^T of the next, and the
// finished tile leaves in the middle of that step. Blocks that no row of this warpgroup sees (causal
// tiles, rows past the end) are let go of unread. Next: epilogue.cuh, piece/softmax.cuh.
#pragma once

#include "engine/hopper/epilogue.cuh"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/piece/mask.cuh"
#include "engine/hopper/piece/roles.cuh"
#include "engine/hopper/piece/smem_plan.cuh"
#include "engine/hopper/piece/softmax.cuh"
#include "engine/hopper/ptx/sync.cuh"
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
        warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    float scores[kScores];
    float output[C.head_dim_v / 2];
    tile::Weights<C.block_n> weights;
    RowState rows;

    if (C.ping_pong && warpgroup_ == C.consumers() - 1) give_turn();
    for (;;) {
      Step step = next_step();
      if (step == Step::kNone) {
        let_go_of_owed_v();
        if (all_done()) break;
        continue;
      }
      if (step == Step::kOthers) {
        take_turn();
        give_turn();
        let_go_unread(next_kv());
        let_go_of_owed_v();
        end_others_step();
        continue;
      }

      // Scores of this warpgroup's first block, alone.
      const KvCursor k0 = next_kv();
      const uint32_t first_q = q_operand();
      const uint32_t first_k = k_operand(k0);
      q_ring_.wait_full(q_);
      at_.kv_ring().wait_full(k0);
      take_turn();
      ptx::wgmma_fence();
      tile::issue_qk<C.element, kQ, kK>(scores, first_q, first_k);
      ptx::wgmma_commit_group();
      give_turn();
      ptx::wgmma_wait_group<0>();
      let_go_of_kv(k0);
      let_go_of_spent_q();
      let_go_of_owed_v();
      owes_v_ = true;
      StepResult first;
      rows = RowState{};
      weigh_ordinary(scores, rows, first);
      add_sums(rows, first);
      pack<0, kScores>(scores, weights);
      start_output(output);

      uint32_t finishing = item_.slot();  // whose output is at work
      for (;; finishing = item_.slot()) {
        const bool starts_tile = n_block_ == 0;
        if (!starts_tile) {
          --n_block_;  // having begun with a tile, a warpgroup goes through with it
        } else {
          step = next_step();
          if (step != Step::kMine) break;
          q_ring_.wait_full(q_);
        }
        const KvCursor k = next_kv();
        const KvCursor v = next_kv();
        wait_for(k, v);
        const uint32_t q_low = q_operand();
        const uint32_t k_low = k_operand(k);
        const uint32_t v_low = v_operand(v);

        take_turn();
        ptx::wgmma_fence();
        tile::issue_qk<C.element, kQ, kK>(scores, q_low, k_low);
        ptx::wgmma_commit_group();
        issue_output(output, weights, v_low);
        ptx::wgmma_commit_group();
        give_turn();

        // Softmax of this block's scores, under the product of the previous block's weights.
        ptx::wgmma_wait_group<C.stages == 1 ? 0 : 1>();
        let_go_of_kv(k);
        let_go_of_spent_q();
        const RowState finished_rows = rows;
        StepResult result;
        const bool guarded = n_block_ < mine_.ordinary_from;
        if (guarded) {
          guarded_step<kEarly>(scores, rows, params_.scale_log2, result, [&] {
            if constexpr (kEarly > 0) {
              wait_for_output(v);
              pack<0, kEarly>(scores, weights);
            }
          });
        } else {
          if (starts_tile) rows = RowState{};
          weigh_ordinary(scores, rows, result);
          if (kEarly > 0) wait_for_output(v);
        }
        if (kEarly == 0) wait_for_output(v);

        // The output is at rest: rescale it, or hand it over if its tile is finished.
        if (guarded) {
          if (needs_correction<C.block_n>(result)) {
            if (!correct<C.block_n>(scores, rows, result)) mark_for_redo();
            rescale(output, rows, result);
            pack<0, kEarly>(scores, weights);
          }
        } else {
          if (starts_tile) {
            finish_tile(finishing, output, finished_rows);
            start_output(output);
          } else {
            rescale(output, rows, result);
          }
          pack<0, kEarly>(scores, weights);
        }
        add_sums(rows, result);
        pack<kEarly, kScores>(scores, weights);
      }

      // The tile's last product, alone.
      if (step == Step::kOthers) {
        take_turn();
        let_go_unread(next_kv());
      }
      const KvCursor v = next_kv();
      const uint32_t last_v = v_operand(v);
      at_.kv_ring().wait_full(v);
      ptx::wgmma_fence();
      issue_output(output, weights, last_v);
      ptx::wgmma_commit_group();
      if (step == Step::kOthers) give_turn();
      wait_for_output(v);
      owes_v_ = false;
      finish_tile(finishing, output, rows);
      if (step == Step::kOthers) end_others_step();
    }
    if (C.ping_pong && warpgroup_ == 0) take_turn();  // the token of the last step
  }

 private:
  static constexpr tile::TileLayout kQ{C.block_m, C.head_dim};
  static constexpr tile::TileLayout kK{C.block_n, C.head_dim};
  static constexpr tile::TileLayout kV{C.block_n, C.head_dim_v};
  static constexpr int kScores = C.block_n / 2;  // of a thread
  static constexpr int kEarly = C.packed_early();

  using KvCursor = RingCursor<C.kv_slots>;

  enum class Step {
    kMine,    // the next key block has keys for this warpgroup
    kOthers,  // it has not, but it passes through the ring
    kNone,    // the stream of steps ends here
  };

  // Moves to the next key block, of this tile or of the next one.
  __device__ __forceinline__ Step next_step() {
    if (n_block_ == 0) {
      at_.item_ring().wait_full(item_.next());
      // Read as a whole, whatever it says: one wait for all of it.
      const WorkItem& item = smem_.items[item_.next().slot()];
      n_block_ = item.num_blocks;
      mine_ = item.mine[warpgroup_];
      if (item.kind != ItemKind::kTile) {
        n_block_ = 0;
        return Step::kNone;
      }
      item_.advance();
      q_.advance();
      --n_block_;
      return n_block_ < mine_.count ? Step::kMine : Step::kOthers;
    }
    --n_block_;
    return n_block_ < mine_.count ? Step::kMine : Step::kOthers;
  }

  // The step's V is still to come; if the whole tile was others', its Q and record are let go of.
  __device__ __forceinline__ void end_others_step() {
    owes_v_ = true;
    if (n_block_ == 0) {
      q_ring_.wait_full(q_);
      if (is_lane_0()) q_ring_.release(q_.slot());
      let_go_of_item(item_.slot());
    }
  }

  // Between streams: whether the record that ended the last one says that no other will follow.
  __device__ __forceinline__ bool all_done() {
    at_.item_ring().wait_full(item_.next());
    const ItemKind kind = smem_.items[item_.next().slot()].kind;
    if (kind == ItemKind::kTile) return false;
    item_.advance();
    let_go_of_item(item_.slot());
    return kind == ItemKind::kDone;
  }

  __device__ __forceinline__ void take_turn() {
    if constexpr (C.ping_pong) {
      ptx::bar_sync(int(roles::NamedBarrier::kTurn) + warpgroup_, roles::kTurnThreads);
    }
  }

  __device__ __forceinline__ void give_turn() {
    if constexpr (C.ping_pong) {
      const int next = warpgroup_ + 1 == C.consumers() ? 0 : warpgroup_ + 1;
      ptx::bar_arrive(int(roles::NamedBarrier::kTurn) + next, roles::kTurnThreads);
    }
  }

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

  __device__ __forceinline__ void let_go_of_kv(KvCursor at) {
    if (is_lane_0()) at_.kv_ring().release(at.slot());
  }

  // A slot may only be let go of once it is full.
  __device__ __forceinline__ void let_go_unread(KvCursor at) {
    at_.kv_ring().wait_full(at);
    let_go_of_kv(at);
  }

  __device__ __forceinline__ void let_go_of_owed_v() {
    if (owes_v_) let_go_unread(next_kv());
    owes_v_ = false;
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
    return tile::mn_major_low(kV, at_.kv(uniform_slot(v.slot())));
  }

  // Until the output and the weights may be touched again, and V loaded over.
  __device__ __forceinline__ void wait_for_output(KvCursor v) {
    ptx::wgmma_wait_group<0>();
    let_go_of_kv(v);
  }

  __device__ __forceinline__ void weigh_ordinary(float (&scores)[kScores], RowState& rows,
                                                 StepResult& step) {
    mask_block<C.block_n>(scores, params_, mine_, n_block_);
    ordinary_step(scores, rows, params_.scale_log2, step);
  }

  // To the reference that the step has left.
  __device__ __forceinline__ void rescale(float (&output)[C.head_dim_v / 2], RowState& rows,
                                          const StepResult& step) {
#pragma unroll
    for (int i = 0; i < C.head_dim_v / 2; ++i) output[i] *= step.rescale[fragment_row_slot(i)];
    rows.sum[0] *= step.rescale[0];
    rows.sum[1] *= step.rescale[1];
  }

  __device__ __forceinline__ void add_sums(RowState& rows, const StepResult& step) {
    rows.sum[0] += step.block_sum[0];
    rows.sum[1] += step.block_sum[1];
  }

  // A tile's first product need not find zeros to be added to, some 100 clocks a tile.
  __device__ __forceinline__ void start_output(float (&output)[C.head_dim_v / 2]) {
    if constexpr (C.short_tile_change()) {
      output_starts_ = true;
    } else {
#pragma unroll
      for (int i = 0; i < C.head_dim_v / 2; ++i) output[i] = 0.0f;
    }
  }

  __device__ __forceinline__ void issue_output(float (&output)[C.head_dim_v / 2],
                                               const tile::Weights<C.block_n>& weights,
                                               uint32_t v) {
    tile::issue_pv<C.element, kV>(output, weights, v, !output_starts_);
    output_starts_ = false;
  }

  // Scores [Begin, End) of the thread, exponentiated.
  template <int Begin, int End>
  __device__ __forceinline__ void pack(const float (&scores)[kScores],
                                       tile::Weights<C.block_n>& weights) {
#pragma unroll
    for (int i = Begin / 2; i < End / 2; ++i) {
      weights[i / 4][i % 4] = ptx::cvt_pair<C.element>(scores[2 * i], scores[2 * i + 1]);
    }
  }

  __device__ __forceinline__ void finish_tile(uint32_t item_slot, float (&output)[C.head_dim_v / 2],
                                              const RowState& rows) {
    const WorkItem& item = smem_.items[item_slot];
    const unsigned warp = consumer_warp();
    if (item.storing_warps >> warp & 1) {
      store_rows<C>(params_, item.index, output, rows, int(warp) * kRowsPerWarp);
    }
    let_go_of_item(item_slot);
  }

  // Some row of this warp was beyond correction.
  __device__ __forceinline__ void mark_for_redo() {
    if (is_lane_0()) atomicOr(&smem_.items[item_.slot()].marked_warps, 1u << consumer_warp());
  }

  __device__ __forceinline__ unsigned consumer_warp() const {
    return (ptx::tid_x() - kWarpgroupSize) / kWarpSize;
  }

  // The tile's last scores were the last use of its Q.
  __device__ __forceinline__ void let_go_of_spent_q() {
    if (n_block_ == 0 && is_lane_0()) q_ring_.release(q_.slot());
  }

  // All lanes have read the record before lane 0 lets go.
  __device__ __forceinline__ void let_go_of_item(uint32_t slot) {
    __syncwarp();
    if (is_lane_0()) at_.item_ring().release(slot);
  }

  __device__ __forceinline__ bool is_lane_0() const {
    return threadIdx.x % kWarpSize == 0;
  }

  const ForwardParams& params_;
  SmemPlan<C>& smem_;
  const SmemAddresses<C> at_;
  const Ring<C.q_slots> q_ring_;  // this warpgroup's
  const int warpgroup_;

  KvCursor kv_;
  ItemCursor item_ = ItemCursor::before_start();                     // the current tile's
  RingCursor<C.q_slots> q_ = RingCursor<C.q_slots>::before_start();  // the current tile's
  KeyBlocks mine_{};            // of the current tile, this warpgroup's
  int n_block_ = 0;             // the current one; 0: the tile's last
  bool owes_v_ = false;         // the V of the last step has not been taken from the ring
  bool output_starts_ = false;  // the next product of weights is the tile's first
};

}  // namespace fa3::hopper
