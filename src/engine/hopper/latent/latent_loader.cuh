// SPDX-License-Identifier: Apache-2.0
// The loader's warpgroup for rows of 16 bits: copies blocks of keys into the ring, 16
// bytes a copy. Eight neighbouring threads copy the 128 bytes of a key in a slab, so a thread has
// four keys of a block. Keys that do not exist become zeros, and nothing is read for them. Next:
// latent_rows.cuh.
#pragma once

#include "engine/hopper/latent/latent_keys.cuh"
#include "engine/hopper/latent/latent_shape.h"
#include "engine/hopper/latent/latent_wide_ring.cuh"
#include "engine/hopper/pipeline/pipeline.cuh"
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

// For CTAs of 64 query rows: two blocks at a time, whose halves come in the order in which the
// consumers release them (latent_wide_rows.cuh). A half that has been released waits for nothing
// but its copies: where the keys of both blocks lie is known before.
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
