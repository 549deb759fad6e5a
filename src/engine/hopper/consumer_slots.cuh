// SPDX-License-Identifier: Apache-2.0
// What one consumer warpgroup holds of the rings: which slots of K and V, which part of Q, which tile's
// record, and when it gives each back. A warp gives a slot back by its lane 0, once all its lanes are
// done with it. Next: consumer_tile.cuh.
#pragma once

#include "engine/hopper/piece/roles.cuh"
#include "engine/hopper/piece/smem_plan.cuh"
#include "engine/hopper/ptx/fence.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/tile/gemm.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
class ConsumerSlots {
 public:
  using KvCursor = RingCursor<C.kv_slots>;

  __device__ __forceinline__ ConsumerSlots(SmemAddresses<C> at, int warpgroup)
      : at_(at), q_ring_(at.q_ring(warpgroup)), warpgroup_(warpgroup) {}

  __device__ __forceinline__ SmemAddresses<C> at() const { return at_; }

  // ---- Tiles: their records, and their parts of Q ----

  // The next tile's record; it is the current one's once take_item() was called.
  __device__ __forceinline__ uint32_t wait_for_item() const {
    at_.item_ring().wait_full(item_.next());
    return item_.next().slot();
  }
  __device__ __forceinline__ void take_item() { item_.advance(); }
  __device__ __forceinline__ void take_q() { q_.advance(); }

  __device__ __forceinline__ uint32_t item() const { return item_.slot(); }
  __device__ __forceinline__ uint32_t item_before() const { return item_.previous().slot(); }

  __device__ __forceinline__ void wait_for_q() const { q_ring_.wait_full(q_); }
  __device__ __forceinline__ void release_q() const {
    if (arrives()) q_ring_.release(q_.slot());
  }

  // All lanes have read the record before lane 0 releases it.
  __device__ __forceinline__ void release_item(uint32_t slot) const {
    __syncwarp();
    if (arrives()) at_.item_ring().release(slot);
  }

  // ---- Key blocks ----

  __device__ __forceinline__ KvCursor next_kv() {
    const KvCursor at = kv_;
    kv_.advance();
    return at;
  }

  __device__ __forceinline__ void wait_for(KvCursor at) const { at_.kv_ring().wait_full(at); }

  // Asks for both before waiting for either: most often both are there.
  __device__ __forceinline__ void wait_for(KvCursor k, KvCursor v) const {
    const bool k_is_full = at_.kv_ring().is_full(k);
    const bool v_is_full = at_.kv_ring().is_full(v);
    if (k_is_full && v_is_full) return;
    at_.kv_ring().wait_full(k);
    at_.kv_ring().wait_full(v);
  }

  __device__ __forceinline__ void release_kv(KvCursor at) const {
    if (arrives()) at_.kv_ring().release(at.slot());
  }

  // A slot may only be released once it is full.
  __device__ __forceinline__ void release_unread(KvCursor at) const {
    wait_for(at);
    release_kv(at);
  }

  // The V of the block before is still in the ring, and nobody's.
  __device__ __forceinline__ void owe_v() { owes_v_ = true; }
  __device__ __forceinline__ void owe_no_v() { owes_v_ = false; }
  __device__ __forceinline__ void release_owed_v() {
    if (owes_v_) release_unread(next_kv());
    owes_v_ = false;
  }

  // ---- Descriptors for products ----

  // To be at hand before the turn comes: what follows it is time without products.
  __device__ __forceinline__ uint32_t q_operand() const {
    constexpr tile::TileLayout kQ = C.q_tile();
    return uniform(
        tile::k_major_low(at_.q(q_.slot()) + warpgroup_ * kRowsPerWarpgroup * kQ.row_bytes()));
  }
  // This warp's rows of the current tile's Q.
  __device__ __forceinline__ uint32_t q_of_warp() const {
    const uint32_t warp = threadIdx.x / kWarpSize - kWarpsPerWarpgroup;
    return at_.q(q_.slot()) + warp * kRowsPerWarp * C.q_tile().row_bytes();
  }
  __device__ __forceinline__ uint32_t k_operand(KvCursor k) const {
    return tile::k_major_low(at_.kv(uniform_slot(k.slot())));
  }
  __device__ __forceinline__ uint32_t v_operand(KvCursor v) const {
    const uint32_t address = at_.kv(uniform_slot(v.slot()));
    return C.e4m3 ? tile::k_major_low(address) : tile::mn_major_low(C.v_tile(), address);
  }

 private:
  // Of its warp's lanes, this one.
  static __device__ __forceinline__ bool arrives() {
    return ptx::kEveryLaneArrives || threadIdx.x % kWarpSize == 0;
  }

  const SmemAddresses<C> at_;
  const Ring<C.q_slots> q_ring_;  // this warpgroup's
  const int warpgroup_;

  KvCursor kv_;
  ItemCursor item_ = ItemCursor::before_start();                     // the current tile's
  RingCursor<C.q_slots> q_ = RingCursor<C.q_slots>::before_start();  // the current tile's
  bool owes_v_ = false;
};

}  // namespace fa3::hopper
