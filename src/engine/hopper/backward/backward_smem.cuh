// SPDX-License-Identifier: Apache-2.0
// Who does what in a CTA of the backward, and every byte of its shared memory. Next:
// query_gradient.cuh.
//
//   warpgroup 0     dQ: multiplies dS K and adds the product to global memory; without helpers one
//                   thread of it loads, too
//   warpgroup 1, 2  dK and dV of 64 keys each, or one of the two each; they recompute P and hand dS
//                   to warpgroup 0
//   warpgroup 3     helpers, one thread of a warp each: one loads; in deterministic calls one waits
//                   for dQ's semaphore and one releases it; with a score function one may load
//                   tiles of a captured tensor; of a pair one sends dS to the other CTA
#pragma once

#include <cstddef>
#include <type_traits>

#include "engine/cuda/dropout/dropout.cuh"
#include "engine/hopper/backward/key_blocks/key_block_work.cuh"
#include "engine/hopper/pipeline/pipeline.cuh"

namespace fa3::hopper {

enum class BackwardWarpgroup : int { kQuery = 0, kFirstKey = 1, kHelpers = 3 };
enum class HelperWarp : int {
  kLoads = 0,
  kWaitsForSemaphore = 1,
  kReleasesSemaphore = 2,
  kLoadsCaptured = 3,  // to 128 columns
  kSendsDs = 3         // of pairs, which have more
};

// Hardware barrier numbers; 0 is __syncthreads(). At kQueryDone warpgroup 0 meets where it counts
// its additions itself. Key warpgroup w stores at kStore + w, and arrives at kKeysDone + w when it
// no longer reads Q and dO. Its warps exchange draws at kDraws + w.
enum class BackwardBarrier : int { kQueryDone = 1, kKeysDone = 2, kStore = 4, kDraws = 6 };

// Steps by which the wait for dQ's semaphore may lead, and its release may trail.
inline constexpr int kSemaphoreDepth = 4;

// Draws' bits of a step and of the next one (score_tile.cuh), for each warpgroup that computes P.
template <BackwardConfig C>
struct DropoutBits {
  unsigned char bits[C.splits_dkv() ? 1 : C.key_warpgroups()][2]
                    [C.shape.block_m / kRowsPerWarpgroup][cuda::KeyRowDropout::kBytes];
};
struct NoDropoutBits {};
struct NoCapturedTiles {};

// What the other CTA of a pair brings: the columns of its K whose dQ this one sums, and its dS.
template <BackwardConfig C>
struct PairTiles {
  alignas(kSmemAlignment) unsigned char k[C.k_tile().bytes() / 2];
  alignas(kSmemAlignment) unsigned char ds[C.shape.ds_stages][C.ds_tile().bytes()];
};
struct NoPairTiles {};

// The tiles of a persistent CTA's key blocks.
struct DrawnTiles {
  struct alignas(16) Tile {
    uint32_t number;
  };
  Tile of_lap[kLaps];
};
struct NoDrawnTiles {};

template <BackwardConfig C>
struct BackwardSmem {
  alignas(kSmemAlignment) unsigned char k[C.k_stages()][C.k_tile().bytes()];
  alignas(kSmemAlignment) unsigned char v[C.v_tile().bytes()];
  alignas(kSmemAlignment) unsigned char q[C.shape.stages][C.q_tile().bytes()];
  alignas(kSmemAlignment) unsigned char d_o[C.d_o_stages()][C.d_o_part().bytes()];
  // dS, and behind it P where dK and dV are split or scores are capped; or first P, then dS.
  alignas(kSmemAlignment) unsigned char ds[C.shape.ds_stages][C.ds_tile().bytes() + C.p_bytes()];
  alignas(C.pairs() ? kSmemAlignment : 1)
      [[no_unique_address]] std::conditional_t<C.pairs(), PairTiles<C>, NoPairTiles> pair;
  alignas(16) float lse[C.shape.stages][C.shape.block_m];  // in Q's pipeline
  alignas(16) float delta[C.shape.stages]
                         [C.shape.block_m];  // in dO's, or where dK and dV are split in Q's
  // k_pipeline, v_pipeline and added_pipeline use `full` alone.
  alignas(C.dropout() ? 16 : 1)
      [[no_unique_address]] std::conditional_t<C.dropout(), DropoutBits<C>, NoDropoutBits> dropout;
  PipelineBarriers<C.k_stages()> k_pipeline;
  PipelineBarriers<1> v_pipeline;
  PipelineBarriers<C.shape.stages> q_pipeline;
  PipelineBarriers<C.d_o_stages()> d_o_pipeline;
  PipelineBarriers<C.shape.ds_stages> ds_pipeline;
  PipelineBarriers<C.shape.ds_stages> p_pipeline;
  PipelineBarriers<kSemaphoreDepth> semaphore_pipeline;  // full: this CTA may add; empty: released
  PipelineBarriers<kSemaphoreDepth> added_pipeline;      // full: warpgroup 0 has added
  typename KeyBlockWork<C>::Record work;
  // `full` alone: a captured tensor's tile is in a stage of dS, which is free by ds_pipeline.
  [[no_unique_address]] std::conditional_t<kLoadsTile, PipelineBarriers<C.shape.ds_stages>,
                                           NoCapturedTiles>
      captured_pipeline;
  [[no_unique_address]] std::conditional_t<C.persistent() && !C.block_mask(), DrawnTiles,
                                           NoDrawnTiles>
      drawn;
  // `full` alone: the other CTA's dS is here.
  [[no_unique_address]] std::conditional_t<C.pairs(), PipelineBarriers<C.shape.ds_stages>,
                                           NoPairTiles>
      pair_pipeline;
};

// BackwardSmem by shared-memory addresses, which the hardware's instructions take.
template <BackwardConfig C>
struct BackwardAddresses {
  using Smem = BackwardSmem<C>;
  uint32_t base;

  __device__ __forceinline__ uint32_t k(uint32_t stage = 0) const {
    return base + uint32_t{offsetof(Smem, k)} + stage * C.k_tile().bytes();
  }
  __device__ __forceinline__ uint32_t v() const { return base + uint32_t{offsetof(Smem, v)}; }
  __device__ __forceinline__ uint32_t q(uint32_t stage) const {
    return base + uint32_t{offsetof(Smem, q)} + stage * C.q_tile().bytes();
  }
  __device__ __forceinline__ uint32_t d_o(uint32_t stage) const {
    return base + uint32_t{offsetof(Smem, d_o)} + stage * C.d_o_part().bytes();
  }
  __device__ __forceinline__ uint32_t ds(uint32_t stage) const {
    return base + uint32_t{offsetof(Smem, ds)} + stage * (C.ds_tile().bytes() + C.p_bytes());
  }
  __device__ __forceinline__ uint32_t p(uint32_t stage) const {
    return C.p_lies_in_ds() ? ds(stage) : ds(stage) + C.ds_tile().bytes();
  }
  __device__ __forceinline__ uint32_t pair_k() const {
    return base + uint32_t{offsetof(Smem, pair)};
  }
  __device__ __forceinline__ uint32_t pair_ds(uint32_t stage) const {
    return pair_k() + C.k_tile().bytes() / 2 + stage * C.ds_tile().bytes();
  }
  // For descriptors: the high bits of an address in a cluster are the CTA's rank.
  static __device__ __forceinline__ uint32_t in_cta(uint32_t address) {
    return C.pairs() ? address & 0xffffff : address;
  }
  __device__ __forceinline__ uint32_t lse(uint32_t stage) const {
    return base + uint32_t{offsetof(Smem, lse)} + stage * uint32_t{C.shape.block_m * sizeof(float)};
  }
  __device__ __forceinline__ uint32_t delta(uint32_t stage) const {
    return base + uint32_t{offsetof(Smem, delta)} +
           stage * uint32_t{C.shape.block_m * sizeof(float)};
  }
  __device__ __forceinline__ uint32_t dropout_bits(int warpgroup) const {
    return base + uint32_t{offsetof(Smem, dropout)} +
           uint32_t(warpgroup) * sizeof(DropoutBits<C>::bits[0]);
  }
  __device__ __forceinline__ uint32_t drawn_tile(uint32_t lap) const {
    return base + uint32_t{offsetof(Smem, drawn)} +
           lap % kLaps * uint32_t{sizeof(DrawnTiles::Tile)};
  }
  __device__ __forceinline__ Pipeline<C.k_stages()> k_pipeline() const {
    return {base + uint32_t{offsetof(Smem, k_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<1> v_pipeline() const {
    return {base + uint32_t{offsetof(Smem, v_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<C.shape.stages> q_pipeline() const {
    return {base + uint32_t{offsetof(Smem, q_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<C.d_o_stages()> d_o_pipeline() const {
    return {base + uint32_t{offsetof(Smem, d_o_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<C.shape.ds_stages> ds_pipeline() const {
    return {base + uint32_t{offsetof(Smem, ds_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<C.shape.ds_stages> p_pipeline() const {
    return {base + uint32_t{offsetof(Smem, p_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<C.shape.ds_stages> captured_pipeline() const {
    return {base + uint32_t{offsetof(Smem, captured_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<C.shape.ds_stages> pair_pipeline() const {
    return {base + uint32_t{offsetof(Smem, pair_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<kSemaphoreDepth> semaphore_pipeline() const {
    return {base + uint32_t{offsetof(Smem, semaphore_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<kSemaphoreDepth> added_pipeline() const {
    return {base + uint32_t{offsetof(Smem, added_pipeline)}};
  }
};

template <BackwardConfig C>
constexpr int backward_smem_bytes() {
  static_assert(sizeof(BackwardSmem<C>) <= kMaxSmemBytes);
  return sizeof(BackwardSmem<C>);
}

}  // namespace fa3::hopper
