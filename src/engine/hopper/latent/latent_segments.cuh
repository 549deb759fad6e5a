// SPDX-License-Identifier: Apache-2.0
// The segments of a CTA's team, one after the other, for each thread by itself.
#pragma once

#include "engine/hopper/latent/latent_shape.h"
#include "engine/hopper/ptx/lanes.cuh"

namespace fa3::hopper {

template <int Threads, int MostTiles = kMostStreamTiles>
class LatentSegments {
 public:
  struct Smem {
    int ends[MostTiles];  // stream: the sum of blocks of tiles 0 to i
    int warps[Threads / kWarpSize];
  };

  // By all threads of the CTA.
  __device__ __forceinline__ LatentSegments(const LatentParams& params, Smem& smem)
      : params_(params), smem_(smem), team_(int(blockIdx.x) / params.team_ctas) {
    if (params.splits == 0) {
      add_up();
      const int total = smem.ends[params.tiles - 1];
      const StreamRanges ranges(total, params.teams);
      if (team_ >= ranges.teams) return;
      at_ = ranges.begin(team_);
      end_ = ranges.begin(team_ + 1);
      int most = params.tiles - 1;  // the first tile that ends behind `at_`
      while (tile_ < most) {
        const int middle = (tile_ + most) / 2;
        smem.ends[middle] > at_ ? most = middle : tile_ = middle + 1;
      }
    } else {
      at_ = team_;
      end_ = params.tiles * params.splits;
    }
  }

  // The next one and its tile. False behind the last one.
  __device__ __forceinline__ bool next(LatentSegment& s, LatentTile& tile) {
    if (at_ >= end_) return false;
    if (params_.splits == 0) {
      while (smem_.ends[tile_] <= at_) ++tile_;  // tiles may be empty
      const StreamRanges ranges(smem_.ends[params_.tiles - 1], params_.teams);
      s = stream_segment(ranges, smem_.ends, tile_, at_, team_);
      tile = latent_tile(params_, s.tile);
      at_ += s.end - s.first;
    } else {
      s = fixed_segment(params_, at_, tile);
      at_ += params_.teams;
    }
    return true;
  }

 private:
  // A tile a thread at a time: its length is one load away, not several.
  __device__ __forceinline__ void add_up() {
    const int thread = int(threadIdx.x), warp = thread / kWarpSize;
    int before = 0;  // of all tiles of earlier rounds
#pragma unroll 1
    for (int first = 0; first < params_.tiles; first += Threads) {
      const int tile = first + thread;
      const int own = tile < params_.tiles ? latent_tile(params_, tile).blocks() : 0;
      int sum = own;
#pragma unroll
      for (int distance = 1; distance < kWarpSize; distance *= 2) {
        const int left = __shfl_up_sync(0xffffffff, sum, distance);
        if (ptx::lane() >= distance) sum += left;
      }
      if (ptx::lane() == kWarpSize - 1) smem_.warps[warp] = sum;
      __syncthreads();
      int all = 0;
#pragma unroll
      for (int w = 0; w < Threads / kWarpSize; ++w) {
        if (w == warp) sum += all;
        all += smem_.warps[w];
      }
      if (tile < params_.tiles) smem_.ends[tile] = before + sum;
      before += all;
      __syncthreads();
    }
  }

  const LatentParams& params_;
  Smem& smem_;
  const int team_;
  int tile_ = 0;
  int at_ = 0, end_ = 0;  // units of the stream, or parts
};

}  // namespace fa3::hopper
