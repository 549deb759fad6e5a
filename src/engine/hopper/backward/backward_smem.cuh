// SPDX-License-Identifier: Apache-2.0
// Who does what in a thread block of the backward, and every byte of its shared memory. Next:
// query_gradient.cuh.
//
//   warpgroup 0     dQ: multiplies dS K and adds the product to global memory; without helpers one
//                   thread of it loads, too
//   warpgroup 1, 2  dK and dV: of 64 keys each, or one of them each. They compute the weights again,
//                   and hand dS to warpgroup 0
//   warpgroup 3     helpers, one thread each: a warp loads; where key blocks add to dQ by turns, one
//                   waits for them and one gives them on
#pragma once

#include <cstddef>

#include "engine/hopper/backward/key_block_work.cuh"
#include "engine/hopper/piece/pipeline.cuh"

namespace fa3::hopper {

enum class BackwardWarpgroup : int { kQuery = 0, kFirstKey = 1, kHelpers = 3 };
enum class HelperWarp : int { kLoads = 0, kWaitsForTurns = 1, kGivesTurns = 2 };

// Hardware barrier numbers; 0 is __syncthreads(). Key warpgroup w stores at kStore + w, and says at
// kKeysDone + w that it reads Q and dO no more.
enum class BackwardBarrier : int { kKeysDone = 2, kStore = 4 };

// So many steps may a turn be waited for before its step, and given on after it.
inline constexpr int kTurnsAhead = 4;

template <BackwardConfig C>
struct BackwardSmem {
  alignas(kSmemAlignment) unsigned char k[C.k_layout().bytes()];
  alignas(kSmemAlignment) unsigned char v[C.v_layout().bytes()];
  alignas(kSmemAlignment) unsigned char q[C.stages][C.q_layout().bytes()];
  alignas(kSmemAlignment) unsigned char d_o[C.stages][C.d_o_layout().bytes()];
  // dS, and behind it P where sides are split or scores are capped.
  alignas(kSmemAlignment) unsigned char ds[C.ds_slots][C.ds_layout().bytes() + C.p_bytes()];
  alignas(16) float lse[C.stages][C.block_m];    // come and go with Q
  alignas(16) float delta[C.stages][C.block_m];  // with dO
  // Of K's, V's and added_ring `full` alone is used.
  RingBarriers<1> k_once;
  RingBarriers<1> v_once;
  RingBarriers<C.stages> q_ring;
  RingBarriers<C.stages> d_o_ring;
  RingBarriers<C.ds_slots> ds_ring;
  RingBarriers<C.ds_slots> p_ring;
  RingBarriers<kTurnsAhead> turn_ring;   // full: this thread block's turn; empty: given on
  RingBarriers<kTurnsAhead> added_ring;  // full: warpgroup 0 has added
  typename KeyBlockWork<C>::Record work;
};

// The same plan by shared-memory addresses, which is what the hardware's instructions take.
template <BackwardConfig C>
struct BackwardAddresses {
  using Plan = BackwardSmem<C>;
  uint32_t base;

  __device__ __forceinline__ uint32_t k() const { return base + uint32_t{offsetof(Plan, k)}; }
  __device__ __forceinline__ uint32_t v() const { return base + uint32_t{offsetof(Plan, v)}; }
  __device__ __forceinline__ uint32_t q(uint32_t slot) const {
    return base + uint32_t{offsetof(Plan, q)} + slot * C.q_layout().bytes();
  }
  __device__ __forceinline__ uint32_t d_o(uint32_t slot) const {
    return base + uint32_t{offsetof(Plan, d_o)} + slot * C.d_o_layout().bytes();
  }
  __device__ __forceinline__ uint32_t ds(uint32_t slot) const {
    return base + uint32_t{offsetof(Plan, ds)} + slot * (C.ds_layout().bytes() + C.p_bytes());
  }
  __device__ __forceinline__ uint32_t p(uint32_t slot) const {
    return ds(slot) + C.ds_layout().bytes();
  }
  __device__ __forceinline__ uint32_t lse(uint32_t slot) const {
    return base + uint32_t{offsetof(Plan, lse)} + slot * uint32_t{C.block_m * sizeof(float)};
  }
  __device__ __forceinline__ uint32_t delta(uint32_t slot) const {
    return base + uint32_t{offsetof(Plan, delta)} + slot * uint32_t{C.block_m * sizeof(float)};
  }
  __device__ __forceinline__ Ring<1> k_once() const {
    return {base + uint32_t{offsetof(Plan, k_once)}};
  }
  __device__ __forceinline__ Ring<1> v_once() const {
    return {base + uint32_t{offsetof(Plan, v_once)}};
  }
  __device__ __forceinline__ Ring<C.stages> q_ring() const {
    return {base + uint32_t{offsetof(Plan, q_ring)}};
  }
  __device__ __forceinline__ Ring<C.stages> d_o_ring() const {
    return {base + uint32_t{offsetof(Plan, d_o_ring)}};
  }
  __device__ __forceinline__ Ring<C.ds_slots> ds_ring() const {
    return {base + uint32_t{offsetof(Plan, ds_ring)}};
  }
  __device__ __forceinline__ Ring<C.ds_slots> p_ring() const {
    return {base + uint32_t{offsetof(Plan, p_ring)}};
  }
  __device__ __forceinline__ Ring<kTurnsAhead> turn_ring() const {
    return {base + uint32_t{offsetof(Plan, turn_ring)}};
  }
  __device__ __forceinline__ Ring<kTurnsAhead> added_ring() const {
    return {base + uint32_t{offsetof(Plan, added_ring)}};
  }
};

template <BackwardConfig C>
constexpr int backward_smem_bytes() {
  static_assert(sizeof(BackwardSmem<C>) <= kMaxSmemBytes);
  return sizeof(BackwardSmem<C>);
}

}  // namespace fa3::hopper
