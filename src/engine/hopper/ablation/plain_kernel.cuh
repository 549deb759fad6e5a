// SPDX-License-Identifier: Apache-2.0
// The forward as the paper tells it, one tile after the other, with every idea behind a switch of its
// configuration: a producer warp or a consumer thread that issues the copies, one to three stages,
// turns. Softmax, mask, products and epilogue are the library's. Tiles are dealt round-robin; those
// with numbers beyond the guarded softmax are done again in a second pass.
#pragma once

#include <cstddef>

#include "engine/hopper/epilogue.cuh"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/piece/mask.cuh"
#include "engine/hopper/piece/pipeline.cuh"
#include "engine/hopper/piece/roles.cuh"
#include "engine/hopper/piece/softmax.cuh"
#include "engine/hopper/piece/work_item.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/ptx/tma.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
struct PlainSmem {
  alignas(kSmemAlignment) unsigned char q[C.q_slots][C.q_bytes()];
  alignas(kSmemAlignment) unsigned char kv[C.kv_slots][C.slot_bytes()];
  RingBarriers<C.q_slots> q_ring;
  RingBarriers<C.kv_slots> kv_ring;
  int any_marked;
};

template <ForwardConfig C>
constexpr int plain_smem_bytes() {
  static_assert(sizeof(PlainSmem<C>) <= kMaxSmemBytes);
  return sizeof(PlainSmem<C>);
}

template <ForwardConfig C>
struct PlainAddresses {
  uint32_t base;
  __device__ __forceinline__ uint32_t q(uint32_t slot) const {
    return base + offsetof(PlainSmem<C>, q) + slot * C.q_bytes();
  }
  __device__ __forceinline__ uint32_t kv(uint32_t slot) const {
    return base + offsetof(PlainSmem<C>, kv) + slot * C.slot_bytes();
  }
  __device__ __forceinline__ Ring<C.q_slots> q_ring() const {
    return {base + uint32_t{offsetof(PlainSmem<C>, q_ring)}};
  }
  __device__ __forceinline__ Ring<C.kv_slots> kv_ring() const {
    return {base + uint32_t{offsetof(PlainSmem<C>, kv_ring)}};
  }
};

// The tiles of this thread block in one pass. The second pass does those with a mark again.
class DealtTiles {
 public:
  __device__ __forceinline__ DealtTiles(const ForwardParams& params, bool second_pass)
      : params_(&params), second_pass_(second_pass), tile_(static_cast<int>(blockIdx.x)) {
    skip_unmarked();
  }
  __device__ __forceinline__ bool done() const { return tile_ >= params_->order.num_tiles(); }
  __device__ __forceinline__ int tile() const { return tile_; }
  __device__ __forceinline__ void advance() {
    tile_ += static_cast<int>(gridDim.x);
    skip_unmarked();
  }

 private:
  __device__ __forceinline__ void skip_unmarked() {
    while (second_pass_ && !done() && params_->redo[tile_].warps == 0) {
      tile_ += static_cast<int>(gridDim.x);
    }
  }
  const ForwardParams* params_;
  bool second_pass_;
  int tile_;
};

// Key blocks of some rows of a tile; rows may be those of several packed heads.
template <ForwardConfig C>
__device__ __forceinline__ KeyBlocks blocks_of_rows(const ForwardParams& params, int first_row,
                                                    int num_rows) {
  const int pack = params.pack_log2;
  return key_blocks(first_row >> pack, num_rows >> pack, C.block_n, params.seqlen_q,
                    params.seqlen_k, params.causal);
}

// Issues the copies of a tile: Q, then K of each block, V as many blocks later as the consumers
// multiply it later. Used by one thread. Its hot part is a few dozen instructions: without a producer,
// a warp of consumers waits for each of them.
template <ForwardConfig C>
class PlainLoader {
 public:
  __device__ __forceinline__ PlainLoader(const ForwardParams& params, PlainAddresses<C> at)
      : params_(params), at_(at) {}

  __device__ __forceinline__ void load_q(int tile) {
    const TileIndex index = params_.order.tile(tile);
    const int first_row = index.m_block * C.block_m;
    batch_ = index.batch;
    kv_head_ = index.head / params_.packs_per_kv_head;
    num_blocks_ = blocks_of_rows<C>(params_, first_row, C.block_m).count;
    next_k_ = next_v_ = 0;
    at_.q_ring().wait_empty(q_);
    const uint32_t full = at_.q_ring().full(q_.slot());
    ptx::mbarrier_arrive_expect_tx(full, kQ.bytes());
    for (int row = 0; row < C.block_m; row += kQBoxRows) {
      load_slabs(params_.q_map, kQ, at_.q(q_.slot()) + row * kQ.row_bytes(), full,
                 {0, (first_row + row) >> params_.pack_log2, index.head, index.batch});
    }
    q_.advance();
  }

  __device__ __forceinline__ bool done() const { return next_v_ == num_blocks_; }

  __device__ __forceinline__ void load_all() {
    while (!done()) {
      at_.kv_ring().wait_empty(kv_);
      load_k_or_v();
    }
  }

  // As many as there is room for now.
  __device__ __forceinline__ void load_what_fits() {
    while (!done() &&
           ptx::mbarrier_test_wait_parity(at_.kv_ring().empty(kv_.slot()), kv_.phase() ^ 1)) {
      load_k_or_v();
    }
  }

 private:
  static constexpr int kLag = C.stages == 3 ? 2 : 1;   // blocks from a K to the V beside it
  static constexpr int kQBoxRows = kRowsPerWarpgroup;  // as launch_forward.cpp encodes the map
  static constexpr tile::TileLayout kQ{C.block_m, C.head_dim};
  static constexpr tile::TileLayout kK{C.block_n, C.head_dim};  // and V
  static_assert(C.head_dim == C.head_dim_v);

  __device__ __forceinline__ void load_k_or_v() {
    const bool is_k = next_k_ < num_blocks_ && next_k_ - next_v_ <= kLag;
    const int block = num_blocks_ - 1 - (is_k ? next_k_ : next_v_);
    next_k_ += is_k ? 1 : 0;
    next_v_ += is_k ? 0 : 1;
    const uint32_t full = at_.kv_ring().full(kv_.slot());
    ptx::mbarrier_arrive_expect_tx(full, kK.bytes());
    load_slabs(is_k ? params_.k_map : params_.v_map, kK, at_.kv(kv_.slot()), full,
               {0, block * C.block_n, kv_head_, batch_});
    kv_.advance();
  }

  __device__ __forceinline__ void load_slabs(const CUtensorMap& map, tile::TileLayout layout,
                                             uint32_t smem, uint32_t full,
                                             ptx::TileCoordinates at) {
#pragma unroll
    for (int slab = 0; slab < layout.slabs(); ++slab) {
      at.column = slab * layout.slab_columns();
      ptx::cp_async_bulk_tensor_load(smem + slab * layout.slab_bytes(), map, at, full);
    }
  }

  const ForwardParams& params_;
  const PlainAddresses<C> at_;
  RingCursor<C.q_slots> q_;
  RingCursor<C.kv_slots> kv_;
  int batch_ = 0, kv_head_ = 0;
  int num_blocks_ = 0;
  int next_k_ = 0, next_v_ = 0;
};

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
        warp_(warpgroup * 4 + ptx::tid_x() % kWarpgroupSize / kWarpSize),
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
    mine_ = {num_blocks, 0, 0};
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
      guarded_step(scores, rows_, params_.scale_log2, result);
      return true;
    }
    if (block >= mine_.masked_from) {
      const int thread = ptx::tid_x() % kWarpgroupSize;
      const int q_row =
          index_.m_block * C.block_m + warpgroup_ * kRowsPerWarpgroup + tile::fragment_row(thread);
      const int key_limits[] = {visible_keys(q_row), visible_keys(q_row + tile::kRowDistance)};
      mask_scores(scores, key_limits, block * C.block_n + tile::fragment_lane_column(thread));
    }
    ordinary_step(scores, rows_, params_.scale_log2, result);
    return false;
  }

  __device__ __forceinline__ int visible_keys(int q_row) const {
    return key_limit(q_row >> params_.pack_log2, params_.seqlen_q, params_.seqlen_k,
                     params_.causal);
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
