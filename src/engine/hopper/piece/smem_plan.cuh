// SPDX-License-Identifier: Apache-2.0
// Every byte of shared memory, named. O leaves from registers; only of e4m3 products its
// earlier parts lie here (../partial_sums.cuh). Each consumer warpgroup has a ring of its own parts of Q, so that none waits
// for another. Next: ../load_tma.cuh.
#pragma once

#include <cstddef>

#include "engine/hopper/piece/e4m3_scales.h"
#include "engine/hopper/piece/sequence_window.cuh"
#include "engine/hopper/piece/work_item.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

inline constexpr int kMaxScaleGroups = 4;

template <ForwardConfig C>
struct E4m3Smem {
  static_assert(C.scale_groups() <= kMaxScaleGroups);
  static constexpr int kEights = C.head_dim_v / 16;  // of a thread's numbers of O

  alignas(16) uint32_t earlier_parts[C.consumer_warps()][kEights][kWarpSize][4];
  KeyScales keys[C.kv_slots][kMaxScaleGroups];  // of the slots with a K
  TileScales tiles[kItemSlots];
};
struct NoE4m3 {};

// K and V of a quantized cache, as they are loaded.
template <ForwardConfig C>
struct NarrowSmem {
  alignas(kSmemAlignment) unsigned char tiles[C.loaded_slots()][C.loaded_slot_bytes()];
};
struct NoNarrow {};
template <ForwardConfig C>
struct NarrowRing {
  RingBarriers<C.loaded_slots()> barriers;
};

// Of kernels that cut tiles: what is known of sequences, and, where they merge pieces themselves, of tiles.
template <bool Merges>
struct CutSmem {
  SequenceSmem sequences;
};
template <>
struct CutSmem<true> {
  SequenceSmem sequences;
  CutTiles tiles;
};
struct NoCuts {};

template <ForwardConfig C>
struct SmemPlan {
  alignas(kSmemAlignment) unsigned char q[C.q_slots][C.q_bytes()];
  alignas(kSmemAlignment) unsigned char kv[C.kv_slots][C.slot_bytes()];
  RingBarriers<C.q_slots> q_rings[C.consumers()];
  RingBarriers<C.kv_slots> kv_ring;
  RingBarriers<kItemSlots> item_ring;
  ItemOf<C> items[kItemSlots];
  alignas(64) std::conditional_t<C.e4m3, E4m3Smem<C>, NoE4m3> e4m3;
  std::conditional_t<C.widens(), NarrowRing<C>, NoNarrow> narrow_ring;
  std::conditional_t<C.widens(), NarrowSmem<C>, NoNarrow> narrow;
  std::conditional_t<C.cuts(), CutSmem<C.decodes()>, NoCuts> cut;

  static_assert(C.q_bytes() % kSmemAlignment == 0 && C.slot_bytes() % kSmemAlignment == 0);
};

// The same plan by shared-memory addresses, which is what the hardware's instructions take.
template <ForwardConfig C>
struct SmemAddresses {
  uint32_t base;

  __device__ __forceinline__ uint32_t q(uint32_t slot) const {
    return base + offsetof(SmemPlan<C>, q) + slot * C.q_bytes();
  }
  __device__ __forceinline__ uint32_t kv(uint32_t slot) const {
    return base + offsetof(SmemPlan<C>, kv) + slot * C.slot_bytes();
  }
  __device__ __forceinline__ Ring<C.q_slots> q_ring(int warpgroup) const {
    return {base + uint32_t{offsetof(SmemPlan<C>, q_rings)} +
            warpgroup * uint32_t{sizeof(RingBarriers<C.q_slots>)}};
  }
  __device__ __forceinline__ Ring<C.kv_slots> kv_ring() const {
    return {base + uint32_t{offsetof(SmemPlan<C>, kv_ring)}};
  }
  __device__ __forceinline__ Ring<kItemSlots> item_ring() const {
    return {base + uint32_t{offsetof(SmemPlan<C>, item_ring)}};
  }
  // Where K and V arrive.
  __device__ __forceinline__ uint32_t loaded(uint32_t slot) const {
    if constexpr (!C.widens()) return kv(slot);
    return base + uint32_t{offsetof(SmemPlan<C>, narrow)} + slot * C.loaded_slot_bytes();
  }
  __device__ __forceinline__ Ring<C.loaded_slots()> loaded_ring() const {
    if constexpr (C.widens()) return {base + uint32_t{offsetof(SmemPlan<C>, narrow_ring)}};
    return {base + uint32_t{offsetof(SmemPlan<C>, kv_ring)}};
  }
  __device__ __forceinline__ uint32_t key_scales(uint32_t slot) const {
    return base + uint32_t{offsetof(SmemPlan<C>, e4m3.keys)} +
           slot * kMaxScaleGroups * uint32_t{sizeof(KeyScales)};
  }
  // The lane's first numbers of a consumer warp's earlier parts of O (../partial_sums.cuh).
  __device__ __forceinline__ uint32_t earlier_parts(uint32_t warp, uint32_t lane) const {
    return base + uint32_t{offsetof(SmemPlan<C>, e4m3.earlier_parts)} +
           (warp * E4m3Smem<C>::kEights * kWarpSize + lane) * 4 * uint32_t{sizeof(uint32_t)};
  }
};

template <ForwardConfig C>
constexpr int smem_bytes() {
  static_assert(sizeof(SmemPlan<C>) <= kMaxSmemBytes);
  return sizeof(SmemPlan<C>);
}

}  // namespace fa3::hopper
