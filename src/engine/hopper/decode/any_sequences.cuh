// SPDX-License-Identifier: Apache-2.0
// Sequences of a decode call as every warp looks them up: a window of 32 at a time, in registers.
// Next: work_tiles.cuh.
#pragma once

#include "engine/hopper/scheduler/sequence_window.cuh"

namespace fa3::hopper {

// Any number of sequences, a window at a time.
class AnySequences {
 public:
  __device__ __forceinline__ explicit AnySequences(const SplitKvSchedule& schedule)
      : schedule_(schedule) {}

  __device__ __forceinline__ int count_blocks() {
    int all = 0;
#pragma unroll 1
    for (int window = 0; window < schedule_.sequences.batch; window += ptx::kLanes) {
      look_from(window, all);
      all = past();
    }
    return all;
  }

  __device__ __forceinline__ BlockPlace place_of(int kv_block) {
    const bool is_before = kv_block < __shfl_sync(0xffffffff, first_, 0);
    int window = is_before ? 0 : window_, before = 0;
#pragma unroll 1
    for (;; window += ptx::kLanes) {
      if (window != window_) look_from(window, before);
      before = past();
      if (kv_block < before) break;
    }
    const int owner = __ffs(int(__ballot_sync(0xffffffff, kv_block < past_))) - 1;
    return {window_ + owner, kv_block - __shfl_sync(0xffffffff, first_, owner)};
  }

  // The sequence that place_of() was last about.
  __device__ __forceinline__ SequenceTiles sequence(int number) const {
    return decoding_sequence(schedule_, number, __shfl_sync(0xffffffff, keys_, number - window_));
  }

 private:
  // `before`: KV blocks of the sequences before.
  __device__ __forceinline__ void look_from(int window, int before) {
    window_ = window;
    int kv_blocks = 0;
    if (window + ptx::lane() < schedule_.sequences.batch) {
      const SequenceTiles s = schedule_.sequence(window + ptx::lane());
      keys_ = s.keys.count;
      kv_blocks = schedule_.length_of(s);
    }
    past_ = before + sum_until(kv_blocks);
    first_ = past_ - kv_blocks;
  }
  __device__ __forceinline__ int past() const {
    return __shfl_sync(0xffffffff, past_, ptx::kLanes - 1);
  }

  SplitKvSchedule schedule_;
  int window_ = -ptx::kLanes;            // its first sequence; there is none yet
  int keys_ = 0, first_ = 0, past_ = 0;  // of the lane's sequence
};

}  // namespace fa3::hopper
