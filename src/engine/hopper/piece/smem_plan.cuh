// SPDX-License-Identifier: Apache-2.0
// Every byte of shared memory, named. O has no buffer: a warp's 16 rows leave through the 16 rows of
// Q that only this warp has read. Next: ../load_tma.cuh.
#pragma once

#include "engine/hopper/tile/layout.h"
#include "engine/hopper/piece/work_item.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
struct SmemPlan {
  alignas(kSmemAlignment) unsigned char q[C.q_slots][C.q_bytes()];
  alignas(kSmemAlignment) unsigned char kv[C.kv_slots][C.slot_bytes()];
  RingBarriers<C.q_slots> q_ring;
  RingBarriers<C.kv_slots> kv_ring;
  RingBarriers<kItemSlots> item_ring;
  WorkItem items[kItemSlots];

  static_assert(C.q_bytes() % kSmemAlignment == 0 && C.slot_bytes() % kSmemAlignment == 0);
  static_assert(C.head_dim_v <= C.head_dim, "O leaves through Q's buffer");
};

template <ForwardConfig C>
constexpr int smem_bytes() {
  static_assert(sizeof(SmemPlan<C>) <= kMaxSmemBytes);
  return sizeof(SmemPlan<C>);
}

}  // namespace fa3::hopper
