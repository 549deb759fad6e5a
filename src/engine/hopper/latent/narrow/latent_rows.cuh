// SPDX-License-Identifier: Apache-2.0
// The consumer's warpgroup for rows of 16 bits: what it computes of a tile's query rows and the
// blocks of keys that pass by. S^T = K Q^T, of which warp w has keys 16 w to 16 w + 15, then
// O^T += V^T P^T, of which it has as many of every 64 channels. Next: latent_scores.cuh.
#pragma once

#include "engine/hopper/latent/narrow/latent_scores.cuh"
#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/ptx/wgmma.cuh"
#include "engine/hopper/ptx/wgmma_narrow.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

template <LatentShape C>
class LatentRows : LatentScores<C> {
  using Scores = LatentScores<C>;
  using Scores::consumer_, Scores::kColumns, Scores::kScores, Scores::params_, Scores::q_;
  // A function that uses a member of one of these copies it first: nvcc has no members of a class's
  // constants in device code.
  static constexpr tile::TileLayout kSlabLayout{kLatentBlockKeys, kSlabChannels};
  static constexpr tile::TileLayout kQLayout{C.rows, kSlabChannels};
  static constexpr tile::TileLayout kPLayout{C.rows, kLatentBlockKeys};
  static constexpr int kSteps = kSlabChannels / 16;  // products of a slab

 public:
  struct Smem {
    alignas(kSmemAlignment) unsigned char q[C.slabs()][C.slab_of_q_bytes()];
    alignas(kSmemAlignment) unsigned char p[kPLayout.bytes()];
    typename Scores::Statistics statistics;
  };

  __device__ __forceinline__ LatentRows(const LatentParams& params, Smem& smem,
                                        const Pipeline<C.stages()>& pipeline, uint32_t stages,
                                        int thread)
      : Scores(params, smem.statistics, ptx::cvta_to_shared(smem.q), 0, thread),
        pipeline_(pipeline),
        stages_(stages),
        p_(ptx::cvta_to_shared(smem.p)) {}

  // Loads the tile's queries. Rows behind the last are zeros.
  __device__ __forceinline__ void start(const LatentTile& tile, int first_row) {
    Scores::start(tile, first_row);
    this->load_queries();
    this->sync();
#pragma unroll
    for (int i = 0; i < kValueSlabs; ++i) {
#pragma unroll
      for (float& o : output_[i]) o = 0.0f;
    }
  }

  __device__ __forceinline__ void attend(const LatentSegment& segment) {
    for (int block = segment.first; block < segment.end; ++block) attend(block);
    this->add_up_sums();
  }

  __device__ __forceinline__ void finish() const {
    this->store_results([this](auto* to, int c, float factor) { store_row(to, c, factor); });
  }
  __device__ __forceinline__ void store_part(int64_t first) const {
    this->store_partial(first, [this](auto* to, int c, float factor) { store_row(to, c, factor); });
  }

 private:
  __device__ __forceinline__ void attend(int block) {
    bool valid[2];
    this->look_up(block, valid);
    float scores[kScores];
    const uint32_t first_stage = uniform(at_.stage());
    multiply_keys(scores, first_stage);
    this->mask(scores, block, valid);
    this->tell_maxima(scores);
    this->sync();
    float factor[kColumns];
    const bool moved = this->softmax(scores, factor);
    store_weights(scores);
    if (__any_sync(0xffffffff, moved)) {
#pragma unroll
      for (int i = 0; i < kValueSlabs; ++i) {
#pragma unroll
        for (int e = 0; e < kScores; ++e) output_[i][e] *= factor[e / 4 * 2 + e % 2];
      }
    }
    ptx::fence_proxy_async();
    this->sync();
    multiply_values(first_stage);
  }

  // S^T = K Q^T, a stage at a time as they come.
  __device__ __forceinline__ void multiply_keys(float (&scores)[kScores], uint32_t first_stage) {
    constexpr tile::TileLayout kSlab = kSlabLayout, kQ = kQLayout;
#pragma unroll
    for (int slab = 0; slab < C.slabs(); ++slab) {
      if (slab % C.stage_slabs() == 0) {
        pipeline_.wait_full(at_);
        at_.advance();
        ptx::fence_proxy_async();  // copies came through the generic proxy
        ptx::wgmma_fence();
      }
      const uint32_t k = tile::k_major_low(slab_address(first_stage, slab));
      const uint32_t q = tile::k_major_low(q_ + uint32_t(slab * C.slab_of_q_bytes()));
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        ptx::wgmma_m64k16_ss<C.element, Major::kK, Major::kK>(
            scores, tile::descriptor(kSlab, k, kSlab.k_major_step(step)),
            tile::descriptor(kQ, q, kQ.k_major_step(step)), slab != 0 || step != 0);
      }
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
  }

  // Stage number `number` of a block, whose first is `first_stage`.
  static __device__ __forceinline__ uint32_t stage_of(uint32_t first_stage, int number) {
    const uint32_t stage = first_stage + uint32_t(number);
    return stage < uint32_t(C.stages()) ? stage : stage - uint32_t(C.stages());
  }
  __device__ __forceinline__ uint32_t slab_address(uint32_t first_stage, int slab) const {
    return stages_ + stage_of(first_stage, slab / C.stage_slabs()) * C.stage_bytes() +
           slab % C.stage_slabs() * kSlabBytes;
  }

  // As (query row, key).
  __device__ __forceinline__ void store_weights(const float (&scores)[kScores]) const {
#pragma unroll
    for (int n = 0; n < C.rows / 8; n += 2) {
      uint32_t pairs[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* const s = scores + (n + i / 2) * 4 + i % 2 * 2;
        pairs[i] = cuda::pack_pair<C.element>(s[0], s[1]);
      }
      ptx::stmatrix_x4_trans(p_ + this->weights_offset(n), pairs);
    }
  }

  // O^T += V^T P^T, 64 channels at a time.
  __device__ __forceinline__ void multiply_values(uint32_t first_stage) {
    constexpr tile::TileLayout kSlab = kSlabLayout, kP = kPLayout;
    const uint32_t p = tile::k_major_low(p_);
    ptx::wgmma_fence();
#pragma unroll
    for (int slab = 0; slab < kValueSlabs; ++slab) {
      const uint32_t v = tile::mn_major_low(kSlab, slab_address(first_stage, slab));
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        ptx::wgmma_m64k16_ss<C.element, Major::kMn, Major::kK>(
            output_[slab], tile::descriptor(kSlab, v, kSlab.mn_major_step(step)),
            tile::descriptor(kP, p, kP.k_major_step(step)), 1);
      }
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
#pragma unroll
    for (int stage = 0; stage < C.block_stages(); ++stage) {
      if (leads_warp()) pipeline_.release(stage_of(first_stage, stage));
    }
  }

  template <class T>
  __device__ __forceinline__ void store_row(T* to, int c, float factor) const {
#pragma unroll
    for (int slab = 0; slab < kValueSlabs; ++slab) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float x = output_[slab][c / 2 * 4 + half * 2 + c % 2] * factor;
        to[slab * kSlabChannels + this->first_key() + half * kRowDistance] =
            Scores::template rounded<T>(x);
      }
    }
  }

  const Pipeline<C.stages()> pipeline_;
  const uint32_t stages_, p_;
  PipelineState<C.stages()> at_;        // the next stage that is waited for
  float output_[kValueSlabs][kScores];  // O^T
};

}  // namespace fa3::hopper
