// SPDX-License-Identifier: Apache-2.0
// The way of a consumer warpgroup through its key blocks, from tile to tile. Next:
// consumer_softmax.cuh, mainloop.cuh.
#pragma once

#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward/consumer/consumer_state.cuh"
#include "engine/hopper/forward/producer/schedule/work_tile_blocks.cuh"

namespace fa3::hopper {

// What bf16 queries over a quantized cache need (fp8/rescale_queries.cuh).
template <Kernel C>
class QueryRescaler;

enum class Step {
  kMine,    // the next key block holds keys for this warpgroup
  kOthers,  // it does not, but passes through the pipeline
  kEnd,     // there is none
};

// The next work tile becomes the current one. Read as a whole, even if it is the end: one wait for
// all of it.
template <Kernel C>
__device__ __forceinline__ void take_work_tile(ConsumerState<C>& c) {
  const uint32_t stage = c.stages.wait_for_work_tile();
  const WorkTileOf<C>& work = c.smem.work_tiles[stage];
  c.tile.start(work.num_blocks);
  if constexpr (C.always_splits()) {
    const int first_row = work.first_row + c.warpgroup * kRowsPerWarpgroup;
    c.tile.set_blocks(WorkTileBlocks<C>(c.params).blocks_of(
        C.consumers() == 1 ? work.first_row : first_row, work.queries, work.keys.count,
        work.first_key, work.num_blocks));
  } else {
    c.tile.set_blocks(work.mine[c.warpgroup]);
  }
  if constexpr (C.dropout()) {
    c.dropout.set_tile(sequence_of<C>(work), work.queries.pack, c.first_row_of(work));
  }
  if constexpr (kAddsLines) {
    const int newest_key = (work.num_blocks - 1) * C.shape.block_n;
    if (work.num_blocks > 0) {
      c.score.template find<C>(c.added_lines(), c.lines_meet(), c.added_references(stage), c.params,
                               work, c.first_row_of(work), newest_key);
    }
  }
  if constexpr (C.e4m3()) c.tile.take_longer_reference();
  if constexpr (C.dequantizes() && !C.types().rescales_queries())
    c.score.set_scale(work.place.key_scale);
  if constexpr (consumer_tuning(C).short_steps) {
    c.tile.set_live_rows(c.params.output.pack.rows(work.queries.count) - c.first_row_of(work));
  }
  c.stages.take_work_tile();
}

// Moves to the next key block, of this tile or of the next one.
template <Kernel C>
__device__ __forceinline__ Step next_step(ConsumerState<C>& c) {
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
__device__ __forceinline__ void receive_q(ConsumerState<C>& c) {
  c.stages.wait_for_q();
  if constexpr (C.types().rescales_queries()) {
    float scales[kRowsPerThread] = {};
    QueryRescaler<C>::fit(c.stages.q_of_warp(), c.tile.live_rows(), scales);
    c.score.set_scales(c.work_tile().place.key_scale, scales);
    ptx::fence_proxy_async();  // products read what these threads have stored
    ptx::bar_sync(int(NamedBarrier::kQueries) + c.warpgroup, kWarpgroupSize);
  }
}

// Returns whether the next tile is this warpgroup's from its first block on.
template <Kernel C>
__device__ __forceinline__ bool start_next_tile(ConsumerState<C>& c, Step& step) {
  step = next_step(c);
  if (step != Step::kMine) return false;
  receive_q(c);
  return true;
}

// The tile's last scores were the last use of its Q.
template <Kernel C>
__device__ __forceinline__ void release_spent_q(const ConsumerState<C>& c) {
  if (c.tile.is_last_block()) c.stages.release_q();
}

// No block of the tile was this warpgroup's: its Q and its work tile are released unused.
template <Kernel C>
__device__ __forceinline__ void pass_tile(const ConsumerState<C>& c) {
  c.stages.wait_for_q();
  c.stages.release_q();
  c.stages.release_work_tile(c.stages.work_tile());
}

// Its V is still to come.
template <Kernel C>
__device__ __forceinline__ void end_passed_block(ConsumerState<C>& c) {
  c.stages.expect_v();
  if (c.tile.is_last_block()) pass_tile(c);
}

// Another warpgroup's block.
template <Kernel C>
__device__ __forceinline__ void pass_block(ConsumerState<C>& c) {
  c.ping_pong.wait();
  c.ping_pong.pass();
  c.stages.release_unread(c.stages.next_kv());
  c.stages.pass_captured();
  c.stages.release_delayed_v();
  end_passed_block(c);
}

}  // namespace fa3::hopper
