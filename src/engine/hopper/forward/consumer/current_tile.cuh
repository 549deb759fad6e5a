// SPDX-License-Identifier: Apache-2.0
// Where a consumer warpgroup is in its current tile: at which key block, and which softmax step
// that block takes. Next: consumer_state.cuh.
#pragma once

#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/config/kernel.h"
#include "engine/hopper/scheduler/work_tile.cuh"

namespace fa3::hopper {

// Which softmax steps (cuda/softmax/softmax.cuh) a tile's remaining blocks take.
// RowBlocks::online_from holds it: blocks below that number take guarded steps, and in the other
// modes no block is below.
enum class TileMode : int {
  kMaxTracking = -1,
  kOnline = 0,
  kGuarded = 1,  // or any larger number
};

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
  __device__ __forceinline__ void set_mode(TileMode mode) { blocks_.online_from = int(mode); }

  __device__ __forceinline__ bool takes_guarded_step() const {
    return block_ < blocks_.online_from && !hides_left();
  }
  __device__ __forceinline__ bool hides_left() const {
    return blocks_.edge.hides_left(first_key());
  }

  // e4m3 leaves less room above the reference: long runs take it from more keys that all rows see.
  // Measured: without this, causal tiles of 16k keys at 64 columns take 1.2 times as long. Where
  // 256 keys are little more than a block, or rows see different keys of the first ones, shorter
  // runs gain too: causal 2k 3 to 4%.
  __device__ __forceinline__ void take_longer_reference() {
    constexpr int kLongRunKeys = C.shape.block_n > 128 ? 512 : 2048, kLongMaskedRunKeys = 512,
                  kKeys = 256;
    const bool masked = consumer_tuning(C).tracks_max && blocks_.masked_from < blocks_.count;
    const int long_run = masked ? kLongMaskedRunKeys : kLongRunKeys;
    const int from = blocks_.masked_from - kKeys / C.shape.block_n;
    if (blocks_.count >= long_run / C.shape.block_n && from < blocks_.online_from) {
      blocks_.online_from = from > 0 ? from : 0;
    }
  }

  // ---- Where loops of steps stop, in kernels that track the maximum ----

  // The look at the tile's rows is due behind the block before its first guarded one.
  __device__ __forceinline__ bool guarded_steps_follow() const {
    return block_ == blocks_.online_from && block_ > 0;
  }
  // The block behind which it is due; 0 if it is past.
  __device__ __forceinline__ int next_look() const {
    return block_ > blocks_.online_from ? blocks_.online_from : 0;
  }

  __device__ __forceinline__ bool is_at_stop() const { return block_ <= stop_; }
  __device__ __forceinline__ void stop_at(int block) { stop_ = block; }

  // ---- Rows ----

  // How many of a thread's two rows of the tile are queries'.
  __device__ __forceinline__ int live_rows() const {
    if constexpr (consumer_tuning(C).short_steps) return live_rows_;
    return kRowsPerThread;
  }
  __device__ __forceinline__ void set_live_rows(int rows_left) {
    live_rows_ = rows_left <= 0 ? 0 : rows_left <= kRowDistance ? 1 : 2;
  }

 private:
  struct AllRows {};

  Blocks blocks_{};
  int block_ = 0;  // also the number of blocks after it; its complement if its scores are lost
  int stop_ = 0;
  std::conditional_t<consumer_tuning(C).short_steps, int, AllRows> live_rows_{};
};

}  // namespace fa3::hopper
