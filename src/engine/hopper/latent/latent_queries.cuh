// SPDX-License-Identifier: Apache-2.0
// What consumers of 16 to 64 rows share: queries as operands of wgmma in shared memory, and where
// a query's results go. Next: latent_finish.cuh.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
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

// By a loader of CTAs of 64 rows, which is ahead of the consumers: they find the rows of their next
// tile in the L2 cache.
__device__ __forceinline__ void prefetch_queries(const LatentParams& params, const LatentTile& tile,
                                                 int first_row, int thread) {
  const MlaProblem& p = params.problem;
  const int row = first_row + thread / 2;
  if (row >= tile.rows) return;
  const ResultRow at = result_row(params, tile, row);
  const uint16_t* const own = p.q.at<uint16_t>(at.b, at.row, at.head);
  const int slabs = int(p.head_dim - p.q_rope_dim) / kSlabChannels;
  for (int slab = thread % 2; slab < slabs; slab += 2) {
    cuda::prefetch_to_l2(own + slab * kSlabChannels);
  }
}

// A tile's rows from `first_row_` on, for `Threads` threads of consumers.
template <LatentShape C, int Threads>
class LatentQueries {
 protected:
  __device__ __forceinline__ LatentQueries(const LatentParams& params, uint32_t q, int thread)
      : params_(params), q_(q), thread_(thread) {}

  // Eight neighbouring threads copy the 128 bytes of a row in a slab. Rows behind the last are
  // zeros. The caller's barrier follows.
  __device__ __forceinline__ void load_queries() {
    constexpr int kChunkChannels = tile::kChunkBytes / 2, kChunks = kSlabChannels / kChunkChannels;
    constexpr tile::TileLayout kQ{C.rows, kSlabChannels};
    const MlaProblem& p = params_.problem;
    const int first_channel = thread_ % kChunks * kChunkChannels;
#pragma unroll
    for (int i = 0; i < C.rows; i += Threads / kChunks) {
      const int tile_row = i + thread_ / kChunks, row = first_row_ + tile_row;
      const bool exists = row < tile_.rows;
      const ResultRow at = result_row(params_, tile_, exists ? row : 0);
      const uint16_t* const own = p.q.at<uint16_t>(at.b, at.row, at.head) + first_channel;
      const uint16_t* const rope =
          p.q_rope_dim > 0 ? p.q_rope.at<uint16_t>(at.b, at.row, at.head) + first_channel
                           : own + kLatentValueDim;
      const uint32_t to = q_ + uint32_t(kQ.chunk_offset(tile_row, first_channel));
#pragma unroll
      for (int slab = 0; slab < C.slabs(); ++slab) {
        ptx::cp_async_16(to + uint32_t(slab * C.slab_of_q_bytes()),
                         slab < kValueSlabs ? own + slab * kSlabChannels : rope, exists);
      }
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
