// SPDX-License-Identifier: Apache-2.0
// The loader's warpgroup for rows of 16 bits in CTAs of 64 query rows: two blocks at a time, whose
// halves come in the order in which the consumers release them. A half that has been released waits
// for nothing but its copies: where the keys of both blocks lie is known before. Next:
// latent_wide_rows.cuh.
#pragma once

#include "engine/hopper/latent/latent_copies.cuh"
#include "engine/hopper/latent/wide/latent_wide_ring.cuh"

namespace fa3::hopper {

template <LatentShape C>
class LatentWideLoader {
 public:
  struct Smem {};

  __device__ __forceinline__ LatentWideLoader(const LatentParams& params,
                                              const Pipeline<C.stages()>& pipeline, uint32_t stages,
                                              Smem&, int thread)
      : copies_(params, thread), ring_(pipeline, stages) {}

  __device__ __forceinline__ void load(const LatentTile& tile, const LatentSegment& segment) {
    int slots[2][LatentCopies::kOwn];
    const auto look_up = [&](int block) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) copies_.keys.look_up(tile, block + odd, slots[odd]);
    };
    look_up(segment.first);
#pragma unroll 1
    for (int block = segment.first; block < segment.end; block += 2) {
      const bool has_odd = block + 1 < segment.end;
      LatentCopies::Keys::Place places[2][LatentCopies::kOwn];
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) copies_.find(block + odd, slots[odd], places[odd]);
      look_up(block + 2);  // behind the last, none is read
      copy<0>(places[0], 0);
      copy<1>(places[0], 0);
      ring_.next(0);
      if (has_odd) {
        copy<1>(places[1], 1);
        copy<0>(places[1], 1);
        ring_.next(1);
      }
    }
  }

 private:
  using Ring = LatentWideRing<C>;

  // Half of a block, key by key: neighbouring slabs of a row lie next to each other.
  template <int Half>
  __device__ __forceinline__ void copy(
      const LatentCopies::Keys::Place (&places)[LatentCopies::kOwn], int odd) const {
    ring_.wait_empty(odd, Half);
#pragma unroll
    for (int i = 0; i < LatentCopies::kOwn; ++i) {
#pragma unroll
      for (int slab = Ring::first_slab(Half); slab < Ring::end_slab(Half); ++slab) {
        copies_.copy(places, i, slab, ring_.slab(odd, slab));
      }
    }
    ptx::cp_async_mbarrier_arrive(ring_.full(odd, Half));
  }

  const LatentCopies copies_;
  Ring ring_;
};

}  // namespace fa3::hopper
