// SPDX-License-Identifier: Apache-2.0
// The keys that a token's indices name, in blocks of 64. Blocks without a row of the cache are left
// out. Each warp finds the blocks by itself, a lane two keys of each: warps need not tell each
// other.
#pragma once

#include "engine/hopper/latent/backward/latent_backward_params.h"
#include "engine/hopper/pipeline/roles.cuh"

namespace fa3::hopper {

class SelectedBlocks {
 public:
  __device__ __forceinline__ SelectedBlocks(const LatentBackwardParams& params, int64_t b,
                                            int64_t token)
      : params_(params),
        indices_(params.problem.keys.of(b, token)),
        left_(int(params.problem.keys.count_of(b, token))) {
    look_ahead();
  }

  // False behind the last block.
  __device__ __forceinline__ bool next() {
    while (left_ > 0) {
      own_[0] = ahead_[0], own_[1] = ahead_[1];
      indices_ += kGradientKeys;
      left_ -= kGradientKeys;
      look_ahead();
      if ((named(0) | named(1)) != 0) return true;
    }
    return false;
  }

  // Which keys of half a block name rows: bit i of half h is key 32 h + i. By the whole warp.
  __device__ __forceinline__ uint32_t named(int half) const {
    return __ballot_sync(0xffffffff, own_[half] >= 0);
  }
  // The row of the cache that a key of half a block names, -1: none. By the whole warp.
  __device__ __forceinline__ int row_of(int half, int key) const {
    return __shfl_sync(0xffffffff, own_[half], key);
  }

 private:
  // An index takes as long as a row, so each is loaded a block ahead.
  __device__ __forceinline__ void look_ahead() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int key = half * kWarpSize + ptx::lane();
      const int row = key < left_ ? __ldg(indices_ + key) : -1;
      ahead_[half] = row >= 0 && row < params_.cache_rows() ? row : -1;
    }
  }

  const LatentBackwardParams& params_;
  const int32_t* indices_;  // of the block ahead
  int left_;                // indices from that block on
  int own_[2], ahead_[2];
};

}  // namespace fa3::hopper
