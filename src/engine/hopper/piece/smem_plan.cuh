// SPDX-License-Identifier: Apache-2.0
// Every byte of shared memory, named. O has none: it leaves from registers. Each consumer warpgroup
// has a ring of its own parts of Q, so that none waits for another. Next: ../load_tma.cuh.
#pragma once

#include <cstddef>

#include "engine/hopper/piece/work_item.cuh"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

template <ForwardConfig C>
struct SmemPlan {
  alignas(kSmemAlignment) unsigned char q[C.q_slots][C.q_bytes()];
  alignas(kSmemAlignment) unsigned char kv[C.kv_slots][C.slot_bytes()];
  RingBarriers<C.q_slots> q_rings[C.consumers()];
  RingBarriers<C.kv_slots> kv_ring;
  RingBarriers<kItemSlots> item_ring;
  ItemOf<C> items[kItemSlots];

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
};

template <ForwardConfig C>
constexpr int smem_bytes() {
  static_assert(sizeof(SmemPlan<C>) <= kMaxSmemBytes);
  return sizeof(SmemPlan<C>);
}

}  // namespace fa3::hopper
