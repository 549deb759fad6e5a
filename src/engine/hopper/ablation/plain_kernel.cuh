// SPDX-License-Identifier: Apache-2.0
// The forward as the paper tells it, one tile after the other, with every idea behind a switch of its
// configuration: a producer warp or a consumer thread that issues the copies, one to three stages,
// turns. Softmax, mask, products and epilogue are the library's. Tiles are dealt round-robin; those
// with numbers beyond the guarded softmax are done again in a second pass.
#pragma once

#include "engine/hopper/ablation/plain_loader.cuh"
#include "engine/hopper/epilogue.cuh"
#include "engine/hopper/piece/mask.cuh"
#include "engine/hopper/piece/roles.cuh"
#include "engine/hopper/piece/softmax.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

// One warpgroup. Without a producer, thread 0 of the block also holds the loader, and gives it a
// chance wherever it waits or has let go of something.
template <ForwardConfig C>
class PlainConsumer {
 public:
  __device__ __forceinline__ PlainConsumer(const ForwardParams& params, PlainSmem<C>& smem,
                                           PlainAddresses<C> at, int warpgroup)
      : params_(params),
        smem_(smem),
        at_(at),
        warpgroup_(warpgroup),
        warp_(warpgroup * 4 + int(ptx::tid_x() % kWarpgroupSize / kWarpSize)),
        loader_(params, at) {}

  __device__ __forceinline__ void run_pass(bool second_pass) {
    if (C.ping_pong && warpgroup_ == C.consumers() - 1) give_turn();
    for (DealtTiles tiles(params_, second_pass); !tiles.done(); tiles.advance()) {
      attend(tiles.tile(), second_pass);
    }
    if (C.ping_pong && warpgroup_ == 0) take_turn();
  }

 private:
  static constexpr tile::TileLayout kQ{C.block_m, C.head_dim};
  static constexpr tile::TileLayout kK{C.block_n, C.head_dim};
  static constexpr tile::TileLayout kV{C.block_n, C.head_dim_v};
  using Scores = float[C.block_n / 2];
  using KvCursor = RingCursor<C.kv_slots>;

  __device__ __forceinline__ void attend(int tile, bool second_pass) {
    index_ = params_.order.tile(tile);
    const int first_row = index_.m_block * C.block_m;
    const int num_blocks = blocks_of_rows<C>(params_, first_row, C.block_m).count;
    const int my_row = first_row + warpgroup_ * kRowsPerWarpgroup;
    // Rows past the end: every step ordinary, so that they never ask for anything to be done again.
    mine_ = {.count = num_blocks};
    if (my_row < params_.seqlen_q << params_.pack_log2) {
      mine_ = blocks_of_rows<C>(params_, my_row, kRowsPerWarpgroup);
      if (second_pass) mine_.ordinary_from = 0;
    }
    rows_ = RowState{};
    marked_ = false;
    if (!C.warp_specialised && leads()) loader_.load_q(tile);
    help_loading();
    wait_full(at_.q_ring(), q_);
    q_low_ = uniform(
        tile::k_major_low(at_.q(q_.slot()) + warpgroup_ * kRowsPerWarpgroup * kQ.row_bytes()));
    float output[C.head_dim_v / 2];
    tile::Weights<C.block_n> weights;
    if constexpr (C.stages == 3) {
      three_stages(num_blocks, output, weights);
    } else {
      two_stages(num_blocks, output, weights);
    }
    finish(tile, output, second_pass);
  }

  // Q K^T of a block beside P V of the block before; the softmax under the latter, or after both.
  __device__ __forceinline__ void two_stages(int num_blocks, float (&output)[C.head_dim_v / 2],
                                             tile::Weights<C.block_n>& weights) {
    Scores scores;
    first_scores(scores);
    StepResult result;
    weigh(num_blocks - 1, scores, result);
    add_sums(result);
    pack(scores, weights);
    clear(output);
#pragma unroll 1
    for (int block = num_blocks - 2; block >= 0; --block) {
      const KvCursor k = next_kv(), v = next_kv();
      wait_full(at_.kv_ring(), v);  // the later one
      wait_full(at_.kv_ring(), k);
      const uint32_t k_low = k_operand(k), v_low = v_operand(v);
      take_turn();
      ptx::wgmma_fence();
      tile::issue_qk<C.element, kQ, kK>(scores, q_low_, k_low);
      ptx::wgmma_commit_group();
      tile::issue_pv<C.element, kV>(output, weights, v_low);
      ptx::wgmma_commit_group();
      give_turn();
      ptx::wgmma_wait_group<C.stages == 1 ? 0 : 1>();
      let_go(k);
      help_loading();
      const bool guarded = weigh(block, scores, result);
      ptx::wgmma_wait_group<0>();
      let_go(v);
      settle(guarded, scores, output, result);
      pack(scores, weights);
    }
    last_output(output, weights);
  }

  // Scores of the next block are multiplied before the softmax of this one begins.
  __device__ __forceinline__ void three_stages(int num_blocks, float (&output)[C.head_dim_v / 2],
                                               tile::Weights<C.block_n>& weights) {
    Scores scores, next;
    StepResult result;
    first_scores(scores);
    if (num_blocks > 1) {
      const KvCursor k = next_kv();
      wait_full(at_.kv_ring(), k);
      const uint32_t k_low = k_operand(k);
      take_turn();
      ptx::wgmma_fence();
      tile::issue_qk<C.element, kQ, kK>(next, q_low_, k_low);
      ptx::wgmma_commit_group();
      give_turn();
      weigh(num_blocks - 1, scores, result);
      ptx::wgmma_wait_group<0>();
      let_go(k);
    } else {
      weigh(0, scores, result);
    }
    add_sums(result);
    pack(scores, weights);
    clear(output);
#pragma unroll 1
    for (int block = num_blocks - 2; block >= 1; --block) {
      copy(next, scores);
      const KvCursor k = next_kv(), v = next_kv();
      wait_full(at_.kv_ring(), k);
      wait_full(at_.kv_ring(), v);
      const uint32_t k_low = k_operand(k), v_low = v_operand(v);
      take_turn();
      ptx::wgmma_fence();
      tile::issue_qk<C.element, kQ, kK>(next, q_low_, k_low);
      ptx::wgmma_commit_group();
      tile::issue_pv<C.element, kV>(output, weights, v_low);
      ptx::wgmma_commit_group();
      give_turn();
      const bool guarded = weigh(block, scores, result);
      ptx::wgmma_wait_group<0>();
      let_go(k);
      let_go(v);
      settle(guarded, scores, output, result);
      pack(scores, weights);
    }
    if (num_blocks > 1) {
      const KvCursor v = next_kv();
      wait_full(at_.kv_ring(), v);
      const uint32_t v_low = v_operand(v);
      ptx::wgmma_fence();
      tile::issue_pv<C.element, kV>(output, weights, v_low);
      ptx::wgmma_commit_group();
      const bool guarded = weigh(0, next, result);
      ptx::wgmma_wait_group<0>();
      let_go(v);
      settle(guarded, next, output, result);
      pack(next, weights);
    }
    last_output(output, weights);
  }

  __device__ __forceinline__ void first_scores(Scores& scores) {
    const KvCursor k = next_kv();
    wait_full(at_.kv_ring(), k);
    const uint32_t k_low = k_operand(k);
    take_turn();
    ptx::wgmma_fence();
    tile::issue_qk<C.element, kQ, kK>(scores, q_low_, k_low);
    ptx::wgmma_commit_group();
    give_turn();
    ptx::wgmma_wait_group<0>();
    let_go(k);
  }

  __device__ __forceinline__ void last_output(float (&output)[C.head_dim_v / 2],
                                              const tile::Weights<C.block_n>& weights) {
    const KvCursor v = next_kv();
    let_go_of_q();
    wait_full(at_.kv_ring(), v);
    const uint32_t v_low = v_operand(v);
    ptx::wgmma_fence();
    tile::issue_pv<C.element, kV>(output, weights, v_low);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    let_go(v);
  }

  // All scores of the tile are there.
  __device__ __forceinline__ void let_go_of_q() {
    if (lane_0()) at_.q_ring().release(q_.slot());
    q_.advance();
  }

  // True if this was the guarded step.
  __device__ __forceinline__ bool weigh(int block, Scores& scores, StepResult& result) {
    result = StepResult{};
    if (block < mine_.ordinary_from) {
      guarded_step<0>(scores, rows_, params_.scale_log2, result, [] {});
      return true;
    }
    mask_block<C.block_n>(scores, params_, mine_, block);
    ordinary_step(scores, rows_, params_.scale_log2, result);
    return false;
  }

  // The output is at rest: bring it and the sums to the rows' new reference.
  __device__ __forceinline__ void settle(bool guarded, Scores& scores,
                                         float (&output)[C.head_dim_v / 2], StepResult& result) {
    if (guarded) {
      if (needs_correction<C.block_n>(result)) {
        marked_ |= !correct<C.block_n>(scores, rows_, result);
        rescale(output, result);
      }
    } else {
      rescale(output, result);
    }
    add_sums(result);
  }

  __device__ __forceinline__ void add_sums(const StepResult& step) {
#pragma unroll
    for (int row = 0; row < kRowsPerThread; ++row) {
      rows_.sum[row] = rows_.sum[row] * step.rescale[row] + step.block_sum[row];
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

  __device__ __forceinline__ void copy(const Scores& from, Scores& to) {
#pragma unroll
    for (int i = 0; i < C.block_n / 2; ++i) to[i] = from[i];
  }

  __device__ __forceinline__ void pack(const Scores& scores, tile::Weights<C.block_n>& weights) {
#pragma unroll
    for (int i = 0; i < C.block_n / 4; ++i) {
      weights[i / 4][i % 4] = ptx::cvt_pair<C.element>(scores[2 * i], scores[2 * i + 1]);
    }
  }

  __device__ __forceinline__ void finish(int tile, float (&output)[C.head_dim_v / 2],
                                         bool second_pass) {
    const unsigned me = 1u << warp_;
    if (!second_pass || (params_.redo[tile].warps & me) != 0) {
      store_rows<C>(params_, index_, output, rows_, warp_ * kRowsPerWarp);
    }
    if (lane_0()) {
      if (marked_) {
        atomicOr(&params_.redo[tile].warps, me);
        smem_.any_marked = 1;
      }
    }
    __syncwarp();
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

  template <class AnyRing>
  __device__ __forceinline__ void wait_full(AnyRing ring, typename AnyRing::Cursor cursor) {
    if constexpr (C.warp_specialised) {
      ring.wait_full(cursor);
    } else {
      if (warp_ != 0) return ring.wait_full(cursor);
      while (!ptx::mbarrier_test_wait_parity(ring.full(cursor.slot()), cursor.phase())) {
        help_loading();
      }
    }
  }

  __device__ __forceinline__ void help_loading() {
    if constexpr (!C.warp_specialised) {
      if (warp_ != 0) return;
      if (leads()) loader_.load_what_fits();
      __syncwarp();
    }
  }

  __device__ __forceinline__ KvCursor next_kv() {
    const KvCursor at = kv_;
    kv_.advance();
    return at;
  }
  __device__ __forceinline__ void let_go(KvCursor at) {
    if (lane_0()) at_.kv_ring().release(at.slot());
  }
  __device__ __forceinline__ uint32_t k_operand(KvCursor k) const {
    return uniform(tile::k_major_low(at_.kv(k.slot())));
  }
  __device__ __forceinline__ uint32_t v_operand(KvCursor v) const {
    return uniform(tile::mn_major_low(kV, at_.kv(v.slot())));
  }
  __device__ __forceinline__ bool lane_0() const {
    return ptx::tid_x() % kWarpSize == 0;
  }
  __device__ __forceinline__ bool leads() const {
    return ptx::tid_x() == 0;
  }

  const ForwardParams& params_;
  PlainSmem<C>& smem_;
  const PlainAddresses<C> at_;
  const int warpgroup_;
  const int warp_;  // among the consumers
  PlainLoader<C> loader_;
  KvCursor kv_;
  RingCursor<C.q_slots> q_;
  uint32_t q_low_ = 0;
  TileIndex index_{};
  KeyBlocks mine_{};
  RowState rows_;
  bool marked_ = false;
};

// All threads of the block, from different places in the code: __syncthreads() does not allow that.
template <ForwardConfig C>
__device__ __forceinline__ void end_pass() {
  __syncwarp();
  ptx::bar_sync(int(roles::NamedBarrier::kEndOfPass), C.threads());
}

template <ForwardConfig C>
__global__ void __launch_bounds__(C.threads(), 1)
    plain_kernel(const __grid_constant__ ForwardParams params) {
  extern __shared__ __align__(kSmemAlignment) unsigned char raw_smem[];
  PlainSmem<C>& smem = *reinterpret_cast<PlainSmem<C>*>(raw_smem);
  const PlainAddresses<C> at{uniform(ptx::cvta_to_shared(raw_smem))};
  const int warpgroup = uniform(threadIdx.x / kWarpSize) / 4;

  if (threadIdx.x == 0) {
    at.q_ring().init(C.consumer_warps());
    at.kv_ring().init(C.consumer_warps());
    smem.any_marked = 0;
    for (DealtTiles tiles(params, false); !tiles.done(); tiles.advance()) {
      params.redo[tiles.tile()].warps = 0;
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();

  if constexpr (C.warp_specialised) {
    if (warpgroup == int(roles::Warpgroup::kProducer)) {
      ptx::setmaxnreg_dec<C.producer_registers()>();
      PlainLoader<C> loader(params, at);
      for (int pass = 0; pass < 2; ++pass) {
        for (DealtTiles tiles(params, pass == 1); threadIdx.x == 0 && !tiles.done();) {
          loader.load_q(tiles.tile());
          loader.load_all();
          tiles.advance();
        }
        end_pass<C>();
        if (!smem.any_marked) return;
      }
      return;
    }
    ptx::setmaxnreg_inc<C.consumer_registers()>();
  }
  PlainConsumer<C> consumer(params, smem, at, warpgroup - (C.warp_specialised ? 1 : 0));
  for (int pass = 0; pass < 2; ++pass) {
    consumer.run_pass(pass == 1);
    end_pass<C>();
    if (!smem.any_marked) break;
  }
}

}  // namespace fa3::hopper
