// SPDX-License-Identifier: Apache-2.0
// The segments of a CTA's team, one after the other, for each thread by itself.
#pragma once

#include "engine/hopper/latent/latent_shape.h"

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
      __syncthreads();
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
  __device__ __forceinline__ void add_up() {
    constexpr int kOwn = 4;
    static_assert(MostTiles <= kOwn * Threads);
    const int first = int(threadIdx.x) * kOwn;
    const bool adds = Threads * kOwn == MostTiles || first < MostTiles;
    int own[kOwn], sum = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      own[i] = first + i < params_.tiles ? latent_tile(params_, first + i).blocks() : 0;
    }
#pragma unroll
    for (int& n : own) n = sum += n;
    int before = sum;
#pragma unroll
    for (int distance = 1; distance < kWarpSize; distance *= 2) {
      const int left = __shfl_up_sync(0xffffffff, before, distance);
      if (ptx::lane() >= distance) before += left;
    }
    const int warp = int(threadIdx.x) / kWarpSize;
    if (ptx::lane() == kWarpSize - 1) smem_.warps[warp] = before;
    __syncthreads();
    before -= sum;
    for (int w = 0; w < warp; ++w) before += smem_.warps[w];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if (adds) smem_.ends[first + i] = before + own[i];
    }
    __syncthreads();
  }

  const LatentParams& params_;
  Smem& smem_;
  const int team_;
  int tile_ = 0;
  int at_ = 0, end_ = 0;  // units of the stream, or parts
};

}  // namespace fa3::hopper
