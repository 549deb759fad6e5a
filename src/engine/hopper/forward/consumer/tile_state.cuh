// SPDX-License-Identifier: Apache-2.0
// The state of a consumer warpgroup, and its way from tile to tile: its place in the pipelines
// (ConsumerStages), its block in the current tile (CurrentTile), its threads' registers
// (ThreadTile), and Consumer, which is composed of them and of the kernel's policies. Next:
// guard.cuh, consumer.cuh.
#pragma once

#include <type_traits>

#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward/policies/outputs.cuh"
#include "engine/hopper/forward/policies/scores.cuh"
#include "engine/hopper/forward/policies/sum.cuh"
#include "engine/hopper/forward/policies/weights.cuh"
#include "engine/hopper/forward/producer/schedule/work_tile_writer.cuh"
#include "engine/hopper/forward/smem_plan.cuh"
#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

// ---- The pipelines ----

// The warpgroup's place in the pipelines: which stages of K and V, which part of Q and which work
// tile it reads, and when it releases each. A warp releases a stage by its lane 0, once all its
// lanes are done with it.
template <Kernel C>
class ConsumerStages {
 public:
  using KvState = PipelineState<C.shape.kv_stages>;

  __device__ __forceinline__ ConsumerStages(SmemAddresses<C> at, int warpgroup)
      : at_(at), q_pipeline_(at.q_pipeline(warpgroup)), warpgroup_(warpgroup) {}

  __device__ __forceinline__ SmemAddresses<C> at() const { return at_; }

  // ---- Work tiles and their parts of Q ----

  // Returns the stage of the next work tile, which take_work_tile() makes the current one.
  __device__ __forceinline__ uint32_t wait_for_work_tile() const {
    at_.work_tile_pipeline().wait_full(work_tile_.next());
    return work_tile_.next().stage();
  }
  __device__ __forceinline__ void take_work_tile() { work_tile_.advance(); }
  __device__ __forceinline__ void take_q() { q_.advance(); }

  __device__ __forceinline__ uint32_t work_tile() const { return work_tile_.stage(); }
  __device__ __forceinline__ uint32_t previous_work_tile() const {
    return work_tile_.previous().stage();
  }

  __device__ __forceinline__ void wait_for_q() const { q_pipeline_.wait_full(q_); }
  __device__ __forceinline__ void release_q() const {
    if (leads_warp()) q_pipeline_.release(q_.stage());
  }

  // All lanes have read the work tile before lane 0 releases it.
  __device__ __forceinline__ void release_work_tile(uint32_t stage) const {
    __syncwarp();
    if (leads_warp()) at_.work_tile_pipeline().release(stage);
  }

  // ---- Key blocks ----

  __device__ __forceinline__ KvState next_kv() {
    const KvState at = kv_;
    kv_.advance();
    return at;
  }

  __device__ __forceinline__ void wait_for(KvState at) const { at_.kv_pipeline().wait_full(at); }

  // Looks at both before it waits for either: most often both are full.
  __device__ __forceinline__ void wait_for(KvState k, KvState v) const {
    const bool k_is_full = at_.kv_pipeline().is_full(k);
    const bool v_is_full = at_.kv_pipeline().is_full(v);
    if (k_is_full && v_is_full) return;
    at_.kv_pipeline().wait_full(k);
    at_.kv_pipeline().wait_full(v);
  }

  __device__ __forceinline__ void release_kv(KvState at) const {
    if (leads_warp()) at_.kv_pipeline().release(at.stage());
  }

  // A stage may only be released once it is full.
  __device__ __forceinline__ void release_unread(KvState at) const {
    wait_for(at);
    release_kv(at);
  }

  // Whether the pipeline still holds a V that nobody has released, once no product waits for it.
  __device__ __forceinline__ void expect_v() { has_delayed_v_ = true; }
  __device__ __forceinline__ void expect_no_v() { has_delayed_v_ = false; }
  __device__ __forceinline__ void release_delayed_v() {
    if (has_delayed_v_) release_unread(next_kv());
    has_delayed_v_ = false;
  }

  // ---- Descriptors for products ----

  // Computed before the warpgroup's turn comes: behind it, tensor cores would wait for it.
  __device__ __forceinline__ uint32_t q_operand() const {
    constexpr tile::TileLayout kQ = C.tiles_in_smem().q;
    return uniform(
        tile::k_major_low(at_.q(q_.stage()) + warpgroup_ * kRowsPerWarpgroup * kQ.row_bytes()));
  }
  // This warp's rows of the current tile's Q.
  __device__ __forceinline__ uint32_t q_of_warp() const {
    const uint32_t warp = threadIdx.x / kWarpSize - kWarpsPerWarpgroup;
    return at_.q(q_.stage()) + warp * kRowsPerWarp * C.tiles_in_smem().q.row_bytes();
  }
  __device__ __forceinline__ uint32_t k_operand(KvState k) const {
    return tile::k_major_low(at_.kv(uniform_stage(k.stage())));
  }
  __device__ __forceinline__ uint32_t v_operand(KvState v) const {
    const uint32_t address = at_.kv(uniform_stage(v.stage()));
    return C.e4m3() ? tile::k_major_low(address) : tile::mn_major_low(C.tiles_in_smem().v, address);
  }

 private:
  const SmemAddresses<C> at_;
  const Pipeline<C.shape.q_stages> q_pipeline_;  // this warpgroup's
  const int warpgroup_;

  KvState kv_;
  WorkTileState work_tile_ = WorkTileState::before_start();  // the current tile's
  PipelineState<C.shape.q_stages> q_ =
      PipelineState<C.shape.q_stages>::before_start();  // the current tile's
  bool has_delayed_v_ = false;
};

// ---- The current tile ----

// Which softmax steps (cuda/softmax/softmax.cuh) a tile's remaining blocks take.
// RowBlocks::online_from holds it: blocks below that number take guarded steps, and in the other
// modes no block is below.
enum class TileMode : int {
  kMaxTracking = -1,
  kOnline = 0,
  kGuarded = 1,  // or any larger number
};

// Where the warpgroup is in its current tile: at which key block, and which softmax step that block
// takes.
template <Kernel C>
class CurrentTile {
 public:
  using Blocks = typename WorkTileOf<C>::Blocks;

  __device__ __forceinline__ void start(int num_blocks) { block_ = num_blocks; }
  // Behind start(): a tile without blocks stands for the end of all tiles.
  __device__ __forceinline__ bool is_end() const { return block_ == 0; }

  // What this warpgroup does with the tile's blocks.
  __device__ __forceinline__ void set_blocks(const Blocks& blocks) { blocks_ = blocks; }
  __device__ __forceinline__ const Blocks& blocks() const { return blocks_; }

  // ---- The current block. Blocks are visited from the last down to 0 ----

  __device__ __forceinline__ int block() const { return block_; }
  __device__ __forceinline__ int first_key() const { return block_ * C.shape.block_n; }
  __device__ __forceinline__ bool is_last_block() const { return block_ == 0; }
  __device__ __forceinline__ void next_block() { --block_; }
  // Some row of this warpgroup sees a key of the block.
  __device__ __forceinline__ bool is_visited() const { return block_ < blocks_.count; }

  // Lost scores: P overflowed, and the block counts for nothing until it is recomputed.
  __device__ __forceinline__ bool scores_lost() const { return block_ < 0; }
  __device__ __forceinline__ bool is_last_block_or_lost() const { return block_ <= 0; }
  __device__ __forceinline__ void lose_scores() { block_ = ~block_; }
  __device__ __forceinline__ void recover_scores() { block_ = ~block_; }

  // ---- Its softmax step ----

  __device__ __forceinline__ TileMode mode() const {
    return blocks_.online_from == int(TileMode::kMaxTracking) ? TileMode::kMaxTracking
           : blocks_.online_from == int(TileMode::kOnline)    ? TileMode::kOnline
                                                              : TileMode::kGuarded;
  }
  __device__ __forceinline__ void set_mode(TileMode mode) { guard_from(int(mode)); }
  // Guarded steps begin behind this block.
  __device__ __forceinline__ void guard_from(int block) { blocks_.online_from = block; }

  __device__ __forceinline__ bool takes_guarded_step() const {
    return block_ < blocks_.online_from && !hides_left();
  }
  __device__ __forceinline__ bool hides_left() const {
    return blocks_.edge.hides_left(first_key());
  }

 private:
  Blocks blocks_{};
  int block_ = 0;  // also the number of blocks after it; its complement if its scores are lost
};

// ---- Registers ----

// A thread's share of a tile. Apart from Consumer, which the compiler only keeps in registers if no
// array stands in it.
template <Kernel C>
struct ThreadTile : WeightsOf<C>::Registers,
                    ScoresOf<C>::Registers,
                    GateOf<C>::Registers,
                    LogitsOf<C>::Registers {
  static constexpr int kScores = C.shape.block_n / 2;

  float scores[kScores];                             // S, then P
  tile::PFragment<C.tiles_in_smem().v, C.e4m3()> p;  // P of the block before, as an operand
  float output[C.shape.head_dim_v / 2];              // O; for e4m3 its newest part
  RowState rows;

  __device__ __forceinline__ void rescale_output(const float (&factor)[kRowsPerThread]) {
#pragma unroll
    for (int i = 0; i < C.shape.head_dim_v / 2; ++i) output[i] *= factor[fragment_row_index(i)];
    rows.sum[0] *= factor[0];
    rows.sum[1] *= factor[1];
  }

  __device__ __forceinline__ void add_sums(const StepResult& step) {
    rows.sum[0] += step.block_sum[0];
    rows.sum[1] += step.block_sum[1];
  }
};

// ---- The consumer ----

// All that a consumer warpgroup knows beside its threads' tiles.
template <Kernel C>
struct Consumer {
  using Scores = ScoresOf<C>;

  __device__ __forceinline__ Consumer(const ForwardParams& params, SmemPlan<C>& smem,
                                      SmemAddresses<C> at, int warpgroup)
      : params(params),
        smem(smem),
        warpgroup(warpgroup),
        scores(params),
        stages(at, warpgroup),
        ping_pong(warpgroup),
        weights(params) {}

  // The current tile's, in shared memory.
  __device__ __forceinline__ WorkTileOf<C>& work_tile() const {
    return smem.work_tiles[stages.work_tile()];
  }
  __device__ __forceinline__ const auto& edge() const {
    return reads_edge_again(C) ? work_tile().mine[warpgroup].edge : tile.blocks().edge;
  }
  __device__ __forceinline__ int masked_from() const {
    return C.e4m3() ? work_tile().mine[warpgroup].masked_from : tile.blocks().masked_from;
  }
  // Some row of the warpgroup does not see all keys of the current block.
  __device__ __forceinline__ bool is_masked() const {
    return tile.block() >= masked_from() || tile.hides_left();
  }

  __device__ __forceinline__ unsigned warp() const {
    return (thread_in_block() - kWarpgroupSize) / kWarpSize;
  }
  // The first row of this warp in `work`'s sequence.
  __device__ __forceinline__ int first_row_of(const WorkTileOf<C>& work) const {
    return work.first_row + int(warp()) * kRowsPerWarp;
  }

  const ForwardParams& params;
  SmemPlan<C>& smem;
  const int warpgroup;
  Scores scores;
  ConsumerStages<C> stages;
  CurrentTile<C> tile;
  SumOf<C> sum;
  const PingPong<C.consumers(), C.shape.ping_pong> ping_pong;
  [[no_unique_address]] WeightsOf<C> weights;
};

template <Kernel C>
using KvState = typename ConsumerStages<C>::KvState;
template <Kernel C>
using ScoreStep = typename ScoresOf<C>::Result;

// ---- From tile to tile ----

enum class Step {
  kMine,    // the next key block holds keys for this warpgroup
  kOthers,  // it does not, but passes through the pipeline
  kEnd,     // there is none
};

// The next work tile becomes the current one. Read as a whole, even if it is the end: one wait for
// all of it.
template <Kernel C>
__device__ __forceinline__ void take_work_tile(Consumer<C>& c) {
  const uint32_t stage = c.stages.wait_for_work_tile();
  const WorkTileOf<C>& work = c.smem.work_tiles[stage];
  c.tile.start(work.num_blocks);
  if constexpr (C.is_stream_k()) {
    const int first_row = work.first_row + c.warpgroup * kRowsPerWarpgroup;
    c.tile.set_blocks(WorkTileBlocks<C>(c.params).blocks_of(
        C.consumers() == 1 ? work.first_row : first_row, work.queries, work.keys.count,
        work.first_key, work.num_blocks));
  } else {
    c.tile.set_blocks(work.mine[c.warpgroup]);
  }
  c.weights.begin_tile(c, work);
  c.scores.begin_tile(c, work, stage);
  GateOf<C>::begin_tile(c, work);
  c.stages.take_work_tile();
}

// Moves to the next key block, of this tile or of the next one.
template <Kernel C>
__device__ __forceinline__ Step next_step(Consumer<C>& c) {
  if (c.tile.is_last_block()) {
    take_work_tile(c);
    if (c.tile.is_end()) return Step::kEnd;
    c.stages.take_q();
  }
  c.tile.next_block();
  return c.tile.is_visited() ? Step::kMine : Step::kOthers;
}

// Once a tile.
template <Kernel C>
__device__ __forceinline__ void receive_q(Consumer<C>& c) {
  c.stages.wait_for_q();
  c.scores.receive_queries(c);
}

// Returns whether the next tile is this warpgroup's from its first block on.
template <Kernel C>
__device__ __forceinline__ bool start_next_tile(Consumer<C>& c, Step& step) {
  step = next_step(c);
  if (step != Step::kMine) return false;
  receive_q(c);
  return true;
}

// The tile's last scores were the last use of its Q.
template <Kernel C>
__device__ __forceinline__ void release_spent_q(const Consumer<C>& c) {
  if (c.tile.is_last_block()) c.stages.release_q();
}

// No block of the tile was this warpgroup's: its Q and its work tile are released unused.
template <Kernel C>
__device__ __forceinline__ void pass_tile(const Consumer<C>& c) {
  c.stages.wait_for_q();
  c.stages.release_q();
  c.stages.release_work_tile(c.stages.work_tile());
}

}  // namespace fa3::hopper
