// SPDX-License-Identifier: Apache-2.0
// What consumers of 16 to 64 rows share: queries as operands of wgmma in shared memory, and where
// a query's results go. Next: latent_finish.cuh.
#pragma once

#include "engine/hopper/latent/latent_finish.cuh"
#include "engine/hopper/latent/latent_shape.h"
#include "engine/hopper/ptx/cp_async.cuh"
#include "engine/hopper/ptx/sync.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

// Place of a packed row of the tile.
__device__ __forceinline__ ResultRow result_row(const LatentParams& params, const LatentTile& tile,
                                                const int& row) {
  const MlaProblem& p = params.problem;
  const int token = row / params.heads;
  return ResultRow{p.lengths_q.packed() ? 0 : tile.b, tile.first_token + token,
                   row - token * params.heads};
}

// A tile's rows from `first_row_` on, for `Threads` threads of consumers.
template <LatentShape C, int Threads>
class LatentQueries {
 protected:
  __device__ __forceinline__ LatentQueries(const LatentParams& params, uint32_t q, int thread)
      : params_(params), q_(q), thread_(thread) {}

  // Slab by slab; rows behind the last are zeros. The caller's barrier follows.
  __device__ __forceinline__ void load_queries() {
    constexpr int kChunkChannels = tile::kChunkBytes / 2, kChunks = C.head_dim / kChunkChannels;
    constexpr tile::TileLayout kQ{C.rows, kSlabChannels};
    const MlaProblem& p = params_.problem;
    const int own = int(p.head_dim - p.q_rope_dim);
#pragma unroll 1
    for (int i = thread_; i < C.rows * kChunks; i += Threads) {
      const int tile_row = i / kChunks, channel = (i - tile_row * kChunks) * kChunkChannels;
      const int row = first_row_ + tile_row, token = row / params_.heads;
      const int64_t b = p.lengths_q.packed() ? 0 : tile_.b, head = row - token * params_.heads;
      const bool exists = row < tile_.rows;
      const uint16_t* from = static_cast<const uint16_t*>(p.q.data);
      if (exists) {
        from = channel < own
                   ? p.q.at<uint16_t>(b, tile_.first_token + token, head) + channel
                   : p.q_rope.at<uint16_t>(b, tile_.first_token + token, head) + (channel - own);
      }
      const int to = channel / kSlabChannels * C.slab_of_q_bytes() +
                     kQ.chunk_offset(tile_row, channel % kSlabChannels);
      ptx::cp_async_16(q_ + uint32_t(to), from, exists);
    }
    ptx::cp_async_wait_all();
    ptx::fence_proxy_async();
  }

  const LatentParams& params_;
  const uint32_t q_;
  const int thread_;
  LatentTile tile_;
  int first_row_ = 0;
};

}  // namespace fa3::hopper
