// SPDX-License-Identifier: Apache-2.0
// The loader's warpgroup for rows of 656 bytes (Group128): copies them as they are, a block of keys
// a stage. A warp copies a key's row at once, 16 bytes a lane. Keys that do not exist become zeros,
// and nothing is read for them. Next: latent_byte_rows.cuh.
#pragma once

#include "engine/hopper/latent/latent_keys.cuh"
#include "engine/hopper/latent/latent_shape.h"
#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/ptx/cp_async.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

template <LatentShape C>
class LatentByteLoader {
 public:
  struct Smem {};

  __device__ __forceinline__ LatentByteLoader(const LatentParams& params,
                                              const Pipeline<C.stages()>& pipeline, uint32_t stages,
                                              Smem&, int thread)
      : keys_(params, thread / kWarpSize * kWarpKeys + thread % kWarpKeys),
        pipeline_(pipeline),
        in_stage_(stages + uint32_t(thread / kWarpSize * kWarpKeys * Group128::kRowBytes +
                                    thread % kWarpSize * tile::kChunkBytes)) {}

  __device__ __forceinline__ void load(const LatentTile& tile, const LatentSegment& segment) {
    int slots[1];
    keys_.look_up(tile, segment.first, slots);
#pragma unroll 1
    for (int block = segment.first; block < segment.end; ++block) {
      const auto place = keys_.place_of(block, 0, slots[0]);
      // One block ahead: an entry of the table takes as long as a row.
      if (block + 1 < segment.end) keys_.look_up(tile, block + 1, slots);
      pipeline_.wait_empty(at_);
      copy(place.latent, place.exists);
      ptx::cp_async_mbarrier_arrive(pipeline_.full(at_.stage()));
      at_.advance();
    }
  }

 private:
  static constexpr int kWarpKeys = kLatentBlockKeys / kWarpsPerWarpgroup;
  static constexpr int kLaneBytes = kWarpSize * tile::kChunkBytes;  // a row's values
  static constexpr int kTailChunks = (C.row_bytes() - kLaneBytes) / tile::kChunkBytes;
  static_assert(kLaneBytes == Group128::kScaleOffset);

  // The warp's keys. Lane i has looked for key number i.
  __device__ __forceinline__ void copy(const std::byte* own, bool exists) const {
    const unsigned all = 0xffffffff, found = __ballot_sync(all, exists);
    const auto address = reinterpret_cast<uint64_t>(own);
    const uint32_t to = in_stage_ + at_.stage() * uint32_t(C.stage_bytes());
#pragma unroll
    for (int key = 0; key < kWarpKeys; ++key) {
      const uint32_t low = __shfl_sync(all, uint32_t(address), key);
      const uint32_t high = __shfl_sync(all, uint32_t(address >> 32), key);
      const auto* const row = reinterpret_cast<const std::byte*>(uint64_t{high} << 32 | low) +
                              ptx::lane() * tile::kChunkBytes;
      const uint32_t at = to + uint32_t(key * Group128::kRowBytes);
      ptx::cp_async_16(at, row, found >> key & 1);
      if (ptx::lane() < kTailChunks) {
        ptx::cp_async_16(at + kLaneBytes, row + kLaneBytes, found >> key & 1);
      }
    }
  }

  const LatentKeys<1, 0> keys_;  // the one of the warp's keys that the lane looks for
  const Pipeline<C.stages()> pipeline_;
  const uint32_t in_stage_;  // the lane's first 16 bytes
  PipelineState<C.stages()> at_;
};

}  // namespace fa3::hopper
