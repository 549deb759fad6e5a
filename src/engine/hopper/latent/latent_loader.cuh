// SPDX-License-Identifier: Apache-2.0
// The loader's warpgroup for rows of 16 bits: copies blocks of keys into the ring, 16
// bytes a copy. Eight neighbouring threads copy the 128 bytes of a key in a slab, so a thread has
// four keys of a block. Keys that do not exist become zeros, and nothing is read for them. Next:
// latent_rows.cuh.
#pragma once

#include "engine/hopper/latent/latent_keys.cuh"
#include "engine/hopper/latent/latent_shape.h"
#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/ptx/cp_async.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

template <LatentShape C>
class LatentLoader {
 public:
  struct Smem {};

  __device__ __forceinline__ LatentLoader(const LatentParams& params,
                                          const Pipeline<C.stages()>& pipeline, uint32_t slabs,
                                          Smem&, uint32_t, int thread)
      : keys_(params, thread / kThreadsOfKey),
        pipeline_(pipeline),
        chunk_bytes_(thread % kThreadsOfKey * tile::kChunkBytes) {
    constexpr tile::TileLayout kSlab{kLatentBlockKeys, kSlabChannels};
    const int chunk = kSlab.swizzled_chunk(thread % kThreadsOfKey, keys_.first());
    to_ = slabs + uint32_t(keys_.first() * kSlab.row_bytes() + chunk * tile::kChunkBytes);
  }

  __device__ __forceinline__ void load(const LatentTile& tile, const LatentSegment& segment) {
    int slots[kOwn];
    keys_.look_up(tile, segment.first, slots);
#pragma unroll 1
    for (int block = segment.first; block < segment.end; ++block) {
      typename Keys::Place places[kOwn];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) places[i] = keys_.place_of(block, i, slots[i]);
      // One block ahead: an entry of the table takes as long as a row.
      if (block + 1 < segment.end) keys_.look_up(tile, block + 1, slots);
#pragma unroll 1
      for (int stage = 0; stage < C.block_stages(); ++stage) copy(places, stage * C.stage_slabs());
    }
  }
  __device__ __forceinline__ void finish() const {}

 private:
  static constexpr int kThreadsOfKey = kSlabChannels * 2 / tile::kChunkBytes;
  static constexpr int kKeysAtOnce = kWarpgroupSize / kThreadsOfKey;
  static constexpr int kOwn = kLatentBlockKeys / kKeysAtOnce;
  using Keys = LatentKeys<kOwn, kKeysAtOnce>;

  __device__ __forceinline__ void copy(const typename Keys::Place (&places)[kOwn], int first) {
    pipeline_.wait_empty(at_);
    const uint32_t to = to_ + at_.stage() * C.stage_bytes();
#pragma unroll
    for (int n = 0; n < C.stage_slabs(); ++n) {
      const int slab = first + n;
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const std::byte* const from =
            slab < kValueSlabs ? places[i].latent + slab * kSlabChannels * 2 : places[i].rope;
        ptx::cp_async_16(to + uint32_t(n * kSlabBytes + i * kKeysAtOnce * kSlabChannels * 2),
                         from + chunk_bytes_, places[i].exists);
      }
    }
    ptx::cp_async_mbarrier_arrive(pipeline_.full(at_.stage()));
    at_.advance();
  }

  const Keys keys_;
  const Pipeline<C.stages()> pipeline_;
  const int chunk_bytes_;
  uint32_t to_;
  PipelineState<C.stages()> at_;
};

}  // namespace fa3::hopper
