// SPDX-License-Identifier: Apache-2.0
// The loader's warpgroup for rows of 16 bits: copies blocks of keys into the ring. Next:
// latent_rows.cuh.
#pragma once

#include "engine/hopper/latent/latent_copies.cuh"
#include "engine/hopper/pipeline/pipeline.cuh"

namespace fa3::hopper {

template <LatentShape C>
class LatentLoader {
 public:
  struct Smem {};

  __device__ __forceinline__ LatentLoader(const LatentParams& params,
                                          const Pipeline<C.stages()>& pipeline, uint32_t stages,
                                          Smem&, int thread)
      : copies_(params, thread), pipeline_(pipeline), stages_(stages) {}

  __device__ __forceinline__ void load(const LatentTile& tile, const LatentSegment& segment) {
    int slots[LatentCopies::kOwn];
    copies_.keys.look_up(tile, segment.first, slots);
#pragma unroll 1
    for (int block = segment.first; block < segment.end; ++block) {
      LatentCopies::Keys::Place places[LatentCopies::kOwn];
      copies_.find(block, slots, places);
      // One block ahead: an entry of the table takes as long as a row.
      if (block + 1 < segment.end) copies_.keys.look_up(tile, block + 1, slots);
#pragma unroll 1
      for (int stage = 0; stage < C.block_stages(); ++stage) copy(places, stage * C.stage_slabs());
    }
  }

 private:
  __device__ __forceinline__ void copy(
      const LatentCopies::Keys::Place (&places)[LatentCopies::kOwn], int first) {
    pipeline_.wait_empty(at_);
    const uint32_t to = stages_ + at_.stage() * C.stage_bytes();
#pragma unroll
    for (int n = 0; n < C.stage_slabs(); ++n) {
#pragma unroll
      for (int i = 0; i < LatentCopies::kOwn; ++i) {
        copies_.copy(places, i, first + n, to + uint32_t(n * kSlabBytes));
      }
    }
    ptx::cp_async_mbarrier_arrive(pipeline_.full(at_.stage()));
    at_.advance();
  }

  const LatentCopies copies_;
  const Pipeline<C.stages()> pipeline_;
  const uint32_t stages_;
  PipelineState<C.stages()> at_;
};

}  // namespace fa3::hopper
