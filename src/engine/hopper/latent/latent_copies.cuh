// SPDX-License-Identifier: Apache-2.0
// How a loader's warpgroup copies rows of 16 bits into slabs, 16 bytes a copy. Eight neighbouring
// threads copy the 128 bytes of a key in a slab, so a thread has four keys of a block. Keys that do
// not exist become zeros, and nothing is read for them.
#pragma once

#include "engine/hopper/latent/latent_keys.cuh"
#include "engine/hopper/latent/latent_shape.h"
#include "engine/hopper/ptx/cp_async.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

// A thread's keys, and its copies of them.
class LatentCopies {
  static constexpr int kThreadsOfKey = kSlabChannels * 2 / tile::kChunkBytes;
  static constexpr int kKeysAtOnce = kWarpgroupSize / kThreadsOfKey;

 public:
  static constexpr int kOwn = kLatentBlockKeys / kKeysAtOnce;
  using Keys = LatentKeys<kOwn, kKeysAtOnce>;

  __device__ __forceinline__ LatentCopies(const LatentParams& params, int thread)
      : keys(params, thread / kThreadsOfKey),
        chunk_bytes_(thread % kThreadsOfKey * tile::kChunkBytes) {
    constexpr tile::TileLayout kSlab{kLatentBlockKeys, kSlabChannels};
    const int chunk = kSlab.swizzled_chunk(thread % kThreadsOfKey, keys.first());
    in_slab_ = uint32_t(keys.first() * kSlab.row_bytes() + chunk * tile::kChunkBytes);
  }

  // Where the thread's chunks of its keys of a block begin.
  __device__ __forceinline__ void find(int block, const int (&slots)[kOwn],
                                       Keys::Place (&places)[kOwn]) const {
    keys.find(block, slots, places);
#pragma unroll
    for (auto& place : places) {
      place.latent = ptx::summed(place.latent + chunk_bytes_);
      place.rope = ptx::summed(place.rope + chunk_bytes_);
    }
  }

  // Slab number `slab` of its key number i, to the one at address `to`.
  __device__ __forceinline__ void copy(const Keys::Place (&places)[kOwn], int i, int slab,
                                       uint32_t to) const {
    const std::byte* const from =
        slab < kValueSlabs ? places[i].latent + slab * kSlabChannels * 2 : places[i].rope;
    ptx::cp_async_16(to + in_slab_ + uint32_t(i * kKeysAtOnce * kSlabChannels * 2), from,
                     places[i].exists);
  }

  const Keys keys;

 private:
  const int chunk_bytes_;
  uint32_t in_slab_;
};

}  // namespace fa3::hopper
