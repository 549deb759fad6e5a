// SPDX-License-Identifier: Apache-2.0
// The consumer: one warpgroup, 64 query rows of each tile. A step multiplies Q K^T of one key block
// and P V of the block before it, and computes the softmax of the first under the second. Steps run
// on across tiles: the last P V of a tile shares its step with the first Q K^T of the next, and the
// finished tile leaves in the middle of that step. Next: epilogue.cuh, piece/softmax.cuh.
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
                                      int warpgroup)
      : params_(params), smem_(smem), warpgroup_(warpgroup) {}

  __device__ __forceinline__ void run() {
    float scores[C.block_n / 2];
    float output[C.head_dim_v / 2];
    tile::Weights<C.block_n> weights;
    RowState rows;

    if (C.ping_pong && warpgroup_ == C.consumers() - 1) give_turn();
    for (;;) {
      smem_.item_ring.consumer_wait_full(item_);
      const ItemKind kind = smem_.items[item_.slot()].kind;
      if (kind != ItemKind::kTile) {
        see_stores_through();
        let_go_of_item(item_);
        item_.advance();
        if (kind == ItemKind::kDone) break;
        continue;
      }

      // Scores of the first block, alone.
      begin_tile();
      --n_block_;
      const RingCursor<C.kv_slots> k0 = next_kv();
      smem_.q_ring.consumer_wait_full(q_);
      smem_.kv_ring.consumer_wait_full(k0);
      ptx::wgmma_fence();
      issue_qk(scores, k0);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      smem_.kv_ring.consumer_release(k0.slot());
      StepResult first;
      rows = RowState{};
      weigh_ordinary(scores, rows, first);
      add_sums(rows, first);
      pack(scores, weights);
      clear(output);

      for (;;) {
        const bool starts_tile = n_block_ == 0;
        const ItemCursor finished = item_;
        if (starts_tile && !advance_tile()) break;
        --n_block_;
        const RingCursor<C.kv_slots> k = next_kv();
        const RingCursor<C.kv_slots> v = next_kv();
        smem_.kv_ring.consumer_wait_full(k);
        smem_.kv_ring.consumer_wait_full(v);

        take_turn();
        ptx::wgmma_fence();
        issue_qk(scores, k);
        ptx::wgmma_commit_group();
        issue_pv(output, weights, v);
        ptx::wgmma_commit_group();
        give_turn();

        // Softmax of this block's scores, under the product of the previous block's weights.
        ptx::wgmma_wait_group<1>();
        smem_.kv_ring.consumer_release(k.slot());
        let_go_of_spent_q();
        const RowState finished_rows = rows;
        StepResult step;
        const bool guarded = n_block_ < ordinary_from_;
        if (guarded) {
          guarded_step(scores, rows, params_.scale_log2, step);
        } else {
          if (starts_tile) rows = RowState{};
          weigh_ordinary(scores, rows, step);
        }
        ptx::wgmma_wait_group<0>();
        smem_.kv_ring.consumer_release(v.slot());

        // The output is at rest: rescale it, or hand it over if its tile is finished.
        if (guarded) {
          if (needs_correction<C.block_n>(step)) {
            marked_ |= !correct<C.block_n>(scores, rows, step);
            rescale(output, step);
          }
        } else if (starts_tile) {
          finish_tile(finished, output, finished_rows);
          clear(output);
        } else {
          rescale(output, step);
        }
        add_sums(rows, step);
        pack(scores, weights);
      }

      // The stream ends: the last product, alone.
      const RingCursor<C.kv_slots> v = next_kv();
      smem_.kv_ring.consumer_wait_full(v);
      ptx::wgmma_fence();
      issue_pv(output, weights, v);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      smem_.kv_ring.consumer_release(v.slot());
      q_.advance();
      finish_tile(item_, output, rows);
      item_.advance();
      let_go_of_spent_q();
    }
    if (C.ping_pong && warpgroup_ == 0) take_turn();  // the token of the last step
  }

 private:
  static constexpr tile::TileLayout kQ{C.block_m, C.head_dim};
  static constexpr tile::TileLayout kK{C.block_n, C.head_dim};
  static constexpr tile::TileLayout kV{C.block_n, C.head_dim_v};

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

  __device__ __forceinline__ void begin_tile() {
    const KeyBlocks& blocks = smem_.items[item_.slot()].blocks;
    n_block_ = blocks.count;
    ordinary_from_ = blocks.ordinary_from;
  }

  // Moves on to the next tile, if the stream goes on and Q has a second buffer for it.
  __device__ __forceinline__ bool advance_tile() {
    if constexpr (!C.overlaps_tiles()) {
      return false;
    } else {
      let_go_of_spent_q();
      ItemCursor next = item_;
      next.advance();
      smem_.item_ring.consumer_wait_full(next);
      if (smem_.items[next.slot()].kind != ItemKind::kTile) return false;
      item_ = next;
      begin_tile();
      q_.advance();
      smem_.q_ring.consumer_wait_full(q_);
      return true;
    }
  }

  __device__ __forceinline__ RingCursor<C.kv_slots> next_kv() {
    const RingCursor<C.kv_slots> at = kv_;
    kv_.advance();
    return at;
  }

  __device__ __forceinline__ void issue_qk(float (&scores)[C.block_n / 2],
                                           RingCursor<C.kv_slots> k) {
    const uint32_t q_rows =
        uniform(ptx::shared_address(smem_.q) + q_.slot() * C.q_bytes() +
                warpgroup_ * kRowsPerWarpgroup * kQ.row_bytes());
    tile::issue_qk<C>(scores, tile::k_major_descriptor(kQ, q_rows),
                      tile::k_major_descriptor(kK, kv_address(k)));
  }

  __device__ __forceinline__ void issue_pv(float (&output)[C.head_dim_v / 2],
                                           const tile::Weights<C.block_n>& weights,
                                           RingCursor<C.kv_slots> v) {
    tile::issue_pv<C>(output, weights, tile::mn_major_descriptor(kV, kv_address(v)));
  }

  __device__ __forceinline__ uint32_t kv_address(RingCursor<C.kv_slots> at) const {
    return uniform(ptx::shared_address(smem_.kv) + at.slot() * C.slot_bytes());
  }

  // Tells the compiler that the warp agrees, so that descriptors live in uniform registers.
  static __device__ __forceinline__ uint32_t uniform(uint32_t x) {
    return __shfl_sync(0xffffffff, x, 0);
  }

  __device__ __forceinline__ void weigh_ordinary(float (&scores)[C.block_n / 2], RowState& rows,
                                                 StepResult& step) {
    if (n_block_ >= smem_.items[item_.slot()].blocks.masked_from) {
      const WorkItem& item = smem_.items[item_.slot()];
      const int thread = ptx::tid_x() % kWarpgroupSize;
      const int q_row = item.index.m_block * C.block_m + warpgroup_ * kRowsPerWarpgroup +
                        tile::fragment_row(thread);
      int key_limits[kRowsPerThread];
#pragma unroll
      for (int row = 0; row < kRowsPerThread; ++row) {
        key_limits[row] = key_limit(q_row + row * tile::kRowDistance, params_.seqlen_q,
                                    params_.seqlen_k, params_.causal);
      }
      mask_scores(scores, key_limits,
                  n_block_ * C.block_n + tile::fragment_lane_column(thread));
    }
    ordinary_step(scores, rows, params_.scale_log2, step);
  }

  __device__ __forceinline__ void add_sums(RowState& rows, const StepResult& step) {
#pragma unroll
    for (int row = 0; row < kRowsPerThread; ++row) {
      rows.sum[row] = rows.sum[row] * step.rescale[row] + step.block_sum[row];
    }
  }

  __device__ __forceinline__ void rescale(float (&output)[C.head_dim_v / 2],
                                          const StepResult& step) {
#pragma unroll
    for (int i = 0; i < C.head_dim_v / 2; ++i) output[i] *= step.rescale[fragment_row_slot(i)];
  }

  __device__ __forceinline__ void clear(float (&output)[C.head_dim_v / 2]) {
#pragma unroll
    for (int i = 0; i < C.head_dim_v / 2; ++i) output[i] = 0.0f;
  }

  __device__ __forceinline__ void pack(const float (&scores)[C.block_n / 2],
                                       tile::Weights<C.block_n>& weights) {
#pragma unroll
    for (int i = 0; i < C.block_n / 4; ++i) {
      weights[i / 4][i % 4] = ptx::cvt_pair<C.element>(scores[2 * i], scores[2 * i + 1]);
    }
  }

  // O leaves through the tile's own Q, which nobody needs any more.
  __device__ __forceinline__ void finish_tile(ItemCursor at, float (&output)[C.head_dim_v / 2],
                                              const RowState& rows) {
    WorkItem& item = smem_.items[at.slot()];
    const int warp = (ptx::tid_x() - kWarpgroupSize) / kWarpSize;
    if (item.storing_warps >> warp & 1) {
      store_rows<C>(params_, item, output, rows, smem_.q[spent_q_slot()], warp * kRowsPerWarp);
    }
    if (marked_ && is_lane_0()) atomicOr(&item.marked_warps, 1u << warp);
    marked_ = false;
    q_is_spent_ = true;
    let_go_of_item(at);
  }

  __device__ __forceinline__ bool is_lane_0() const { return threadIdx.x % kWarpSize == 0; }

  // The Q buffer before the current one: the finished tile's, once q_ has moved on.
  __device__ __forceinline__ uint32_t spent_q_slot() const {
    static_assert(C.q_slots == 1 || C.q_slots == 2);
    return C.q_slots == 2 ? q_.slot() ^ 1 : 0;
  }

  // After the copy engine has read O out of it.
  __device__ __forceinline__ void let_go_of_spent_q() {
    if (q_is_spent_) {
      if (is_lane_0()) ptx::cp_async_bulk_wait_group_read();
      smem_.q_ring.consumer_release(spent_q_slot());
      q_is_spent_ = false;
    }
  }

  __device__ __forceinline__ void see_stores_through() {
    if (is_lane_0()) ptx::cp_async_bulk_wait_group();
  }

  // All lanes have read the record before lane 0 lets go.
  __device__ __forceinline__ void let_go_of_item(ItemCursor at) {
    __syncwarp();
    smem_.item_ring.consumer_release(at.slot());
  }

  const ForwardParams& params_;
  SmemPlan<C>& smem_;
  int warpgroup_;

  RingCursor<C.q_slots> q_;
  RingCursor<C.kv_slots> kv_;
  ItemCursor item_;
  int n_block_;
  int ordinary_from_;
  bool marked_ = false;      // some guarded step of this tile was beyond correction
  bool q_is_spent_ = false;  // a finished tile's O may still be leaving through its Q
};

}  // namespace fa3::hopper
