// SPDX-License-Identifier: Apache-2.0
// The loader's warpgroup: copies the rows of a block of keys, 16 bytes a copy. Eight neighbouring
// threads copy 128 bytes of a key, so a thread has four keys of a block. Keys that name no row
// become zeros, and nothing is read for them.
#pragma once

#include "engine/hopper/latent/backward/latent_backward_smem.cuh"
#include "engine/hopper/latent/backward/selected_blocks.cuh"
#include "engine/hopper/ptx/cp_async.cuh"

namespace fa3::hopper {

template <int HeadDim>
class LatentKeyLoader {
 public:
  using Smem = LatentBackwardSmem<HeadDim>;

  __device__ __forceinline__ LatentKeyLoader(const LatentBackwardParams& params, Smem& smem,
                                             int thread)
      : params_(params),
        pipeline_{ptx::cvta_to_shared(&smem.barriers)},
        first_(thread / kThreadsOfKey),
        chunk_bytes_(thread % kThreadsOfKey * tile::kChunkBytes) {
    constexpr tile::TileLayout kSlab = kGradientSlab;
    const int chunk = kSlab.swizzled_chunk(thread % kThreadsOfKey, first_);
    to_ = ptx::cvta_to_shared(smem.kv) +
          uint32_t(first_ * kSlab.row_bytes() + chunk * tile::kChunkBytes);
  }

  __device__ __forceinline__ void load(SelectedBlocks& blocks) {
    while (blocks.next()) {
      int rows[kOwn];
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        rows[i] = blocks.row_of(i / 2, first_ + i % 2 * kKeysAtOnce);
      }
      pipeline_.wait_empty(at_);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) copy(i, rows[i]);
      ptx::cp_async_mbarrier_arrive(pipeline_.full(at_.stage()));
      at_.advance();
    }
  }

 private:
  static constexpr int kThreadsOfKey = 8;
  static constexpr int kKeysAtOnce = kWarpgroupSize / kThreadsOfKey;
  static constexpr int kOwn = kGradientKeys / kKeysAtOnce;
  static_assert(kOwn == 4);  // two of each half block

  // The thread's key number i.
  __device__ __forceinline__ void copy(int i, int row) const {
    const LatentCache& cache = params_.problem.keys.cache;
    const bool exists = row >= 0;
    const int of = exists ? row : 0, page = of / params_.page_size;
    const int64_t in_page = of - page * params_.page_size;
    const std::byte* const latent = cache.latent.at(page, in_page) + chunk_bytes_;
    const uint32_t to = to_ + uint32_t(i * kKeysAtOnce * 128);
#pragma unroll
    for (int slab = 0; slab < kGradientValueSlabs; ++slab) {
      ptx::cp_async_16(to + uint32_t(slab * kGradientSlabBytes), latent + slab * 128, exists);
    }
    if constexpr (HeadDim > kLatentValueDim) {
      ptx::cp_async_16(to + uint32_t(kGradientValueSlabs * kGradientSlabBytes),
                       cache.rope.at(page, in_page) + chunk_bytes_, exists);
    }
  }

  const LatentBackwardParams& params_;
  const Pipeline<1> pipeline_;
  const int first_, chunk_bytes_;
  uint32_t to_;
  PipelineState<1> at_;
};

}  // namespace fa3::hopper
