// SPDX-License-Identifier: Apache-2.0
// Who does what in a CTA of the backward, and every byte of its shared memory. Next:
// query_gradient.cuh.
//
//   warpgroup 0     dQ: multiplies dS K and adds the product to global memory; without helpers one
//                   thread of it loads, too
//   warpgroup 1, 2  dK and dV: of 64 keys each, or one of them each. They compute the weights
//   again,
//                   and hand dS to warpgroup 0
//   warpgroup 3     helpers, one thread each: a warp loads; where key blocks add to dQ by turns,
//   one
//                   waits for them and one gives them on
#pragma once

#include <cstddef>

#include "engine/hopper/backward/key_block_work.cuh"
#include "engine/hopper/pipeline/pipeline.cuh"

namespace fa3::hopper {

enum class BackwardWarpgroup : int { kQuery = 0, kFirstKey = 1, kHelpers = 3 };
enum class HelperWarp : int { kLoads = 0, kWaitsForTurns = 1, kGivesTurns = 2 };

// Hardware barrier numbers; 0 is __syncthreads(). Key warpgroup w stores at kStore + w, and says at
// kKeysDone + w that it reads Q and dO no more.
enum class BackwardBarrier : int { kKeysDone = 2, kStore = 4 };

// So many steps may a turn be waited for before its step, and given on after it.
inline constexpr int kSemaphoreDepth = 4;

template <BackwardConfig C>
struct BackwardSmem {
  alignas(kSmemAlignment) unsigned char k[C.k_layout().bytes()];
  alignas(kSmemAlignment) unsigned char v[C.v_layout().bytes()];
  alignas(kSmemAlignment) unsigned char q[C.stages][C.q_layout().bytes()];
  alignas(kSmemAlignment) unsigned char d_o[C.stages][C.d_o_layout().bytes()];
  // dS, and behind it P where sides are split or scores are capped.
  alignas(kSmemAlignment) unsigned char ds[C.ds_stages][C.ds_layout().bytes() + C.p_bytes()];
  alignas(16) float lse[C.stages][C.block_m];    // come and go with Q
  alignas(16) float delta[C.stages][C.block_m];  // with dO
  // Of K's, V's and added_pipeline `full` alone is used.
  PipelineBarriers<1> k_once;
  PipelineBarriers<1> v_once;
  PipelineBarriers<C.stages> q_pipeline;
  PipelineBarriers<C.stages> d_o_pipeline;
  PipelineBarriers<C.ds_stages> ds_pipeline;
  PipelineBarriers<C.ds_stages> p_pipeline;
  PipelineBarriers<kSemaphoreDepth> semaphore_pipeline;  // full: this CTA's turn; empty: given on
  PipelineBarriers<kSemaphoreDepth> added_pipeline;      // full: warpgroup 0 has added
  typename KeyBlockWork<C>::Record work;
};

// The same plan by shared-memory addresses, which is what the hardware's instructions take.
template <BackwardConfig C>
struct BackwardAddresses {
  using Plan = BackwardSmem<C>;
  uint32_t base;

  __device__ __forceinline__ uint32_t k() const { return base + uint32_t{offsetof(Plan, k)}; }
  __device__ __forceinline__ uint32_t v() const { return base + uint32_t{offsetof(Plan, v)}; }
  __device__ __forceinline__ uint32_t q(uint32_t stage) const {
    return base + uint32_t{offsetof(Plan, q)} + stage * C.q_layout().bytes();
  }
  __device__ __forceinline__ uint32_t d_o(uint32_t stage) const {
    return base + uint32_t{offsetof(Plan, d_o)} + stage * C.d_o_layout().bytes();
  }
  __device__ __forceinline__ uint32_t ds(uint32_t stage) const {
    return base + uint32_t{offsetof(Plan, ds)} + stage * (C.ds_layout().bytes() + C.p_bytes());
  }
  __device__ __forceinline__ uint32_t p(uint32_t stage) const {
    return ds(stage) + C.ds_layout().bytes();
  }
  __device__ __forceinline__ uint32_t lse(uint32_t stage) const {
    return base + uint32_t{offsetof(Plan, lse)} + stage * uint32_t{C.block_m * sizeof(float)};
  }
  __device__ __forceinline__ uint32_t delta(uint32_t stage) const {
    return base + uint32_t{offsetof(Plan, delta)} + stage * uint32_t{C.block_m * sizeof(float)};
  }
  __device__ __forceinline__ Pipeline<1> k_once() const {
    return {base + uint32_t{offsetof(Plan, k_once)}};
  }
  __device__ __forceinline__ Pipeline<1> v_once() const {
    return {base + uint32_t{offsetof(Plan, v_once)}};
  }
  __device__ __forceinline__ Pipeline<C.stages> q_pipeline() const {
    return {base + uint32_t{offsetof(Plan, q_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<C.stages> d_o_pipeline() const {
    return {base + uint32_t{offsetof(Plan, d_o_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<C.ds_stages> ds_pipeline() const {
    return {base + uint32_t{offsetof(Plan, ds_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<C.ds_stages> p_pipeline() const {
    return {base + uint32_t{offsetof(Plan, p_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<kSemaphoreDepth> semaphore_pipeline() const {
    return {base + uint32_t{offsetof(Plan, semaphore_pipeline)}};
  }
  __device__ __forceinline__ Pipeline<kSemaphoreDepth> added_pipeline() const {
    return {base + uint32_t{offsetof(Plan, added_pipeline)}};
  }
};

template <BackwardConfig C>
constexpr int backward_smem_bytes() {
  static_assert(sizeof(BackwardSmem<C>) <= kMaxSmemBytes);
  return sizeof(BackwardSmem<C>);
}

}  // namespace fa3::hopper
