// SPDX-License-Identifier: Apache-2.0
// A ring of shared-memory slots between the producer and the consumers. Each slot has two barriers:
// `full` (the producer's word, with the bytes the copy engine still owes) and `empty` (one arrival
// from each consumer warp). A cursor walks the ring; its phase flips at each lap. The producer
// starts one phase ahead, so its first lap finds every slot empty.
#pragma once

#include "engine/hopper/ptx/mbarrier.cuh"

namespace fa3::hopper {

template <int Slots>
class RingCursor {
 public:
  __device__ __forceinline__ uint32_t slot() const { return kCounts ? at_ % Slots : at_; }
  __device__ __forceinline__ uint32_t phase() const { return kCounts ? at_ / Slots % 2 : phase_; }

  // One place before the start: where a reader stands that advances before it reads.
  static __device__ __forceinline__ RingCursor before_start() { return RingCursor().previous(); }

  __device__ __forceinline__ RingCursor previous() const {
    static_assert(kCounts);
    RingCursor before = *this;
    --before.at_;
    return before;
  }

  __device__ __forceinline__ RingCursor next() const {
    RingCursor after = *this;
    after.advance();
    return after;
  }

  __device__ __forceinline__ void advance() {
    ++at_;
    if (!kCounts && at_ == Slots) {
      at_ = 0;
      phase_ ^= 1;
    }
  }

 private:
  // Where slots are a power of two, one running count tells both: a register saved.
  static constexpr bool kCounts = (Slots & (Slots - 1)) == 0;
  uint32_t at_ = 0;
  uint32_t phase_ = 0;
};

// The barriers' storage.
template <int Slots>
struct RingBarriers {
  uint64_t full[Slots];
  uint64_t empty[Slots];
};

// The protocol, on the storage at a shared-memory address.
template <int Slots>
struct Ring {
  uint32_t address;

  __device__ __forceinline__ uint32_t full(uint32_t slot) const {
    return address + slot * sizeof(uint64_t);
  }
  __device__ __forceinline__ uint32_t empty(uint32_t slot) const {
    return address + (Slots + slot) * sizeof(uint64_t);
  }

  // One thread, once. A producer of several warps fills a slot when all have arrived.
  __device__ void init(int consumer_arrivals, int producer_arrivals = 1) const {
    for (int slot = 0; slot < Slots; ++slot) {
      ptx::mbarrier_init(full(slot), producer_arrivals);
      ptx::mbarrier_init(empty(slot), consumer_arrivals);
    }
  }

  __device__ __forceinline__ void wait_empty(RingCursor<Slots> at) const {
    ptx::mbarrier_wait_parity(empty(at.slot()), at.phase() ^ 1);
  }

  __device__ __forceinline__ bool is_full(RingCursor<Slots> at) const {
    return ptx::mbarrier_try_wait_parity(full(at.slot()), at.phase());
  }

  __device__ __forceinline__ void wait_full(RingCursor<Slots> at) const {
    ptx::mbarrier_wait_parity(full(at.slot()), at.phase());
  }

  // One lane of each consumer warp, after the whole warp has finished with the slot.
  __device__ __forceinline__ void release(uint32_t slot) const {
    ptx::mbarrier_arrive(empty(slot));
  }
};

}  // namespace fa3::hopper
