// SPDX-License-Identifier: Apache-2.0
// The key blocks of a persistent CTA, one after the other: Q, dO, K and V of the next are on their
// way while dK and dV of the last leave. CTAs draw tiles from one counter, longest first, as the
// hardware deals them to CTAs that end. The loading thread draws one tile more than it loads
// queries of, and leaves each in shared memory before its K: whoever sees a K full may read which
// tile it is of. Other kernels' CTAs have one key block. Next: query_loader.cuh.
//
// What a key block leaves, and who must be done with it before it is overwritten:
//
//   K    two stages    loaded when the first dS is full and dQ's warps have met behind the block
//                      before: then all products with its K are done
//   V    one           loaded when the last dS is full: the last product with V came before it
//   dK, dV             leave through the warpgroup's part of the stage of dS behind the last one's.
//                      Its own first dS waits for their copies (KeyGradients::wait_for_copies)
#pragma once

#include "engine/hopper/backward/backward_smem.cuh"
#include "engine/hopper/ptx/block.cuh"
#include "engine/hopper/ptx/smem.cuh"

namespace fa3::hopper {

// For all threads.
template <BackwardConfig C>
class KeyBlockWalk {
 public:
  __device__ __forceinline__ bool is_at_first() const { return !C.persistent || lap_ == 0; }
  __device__ __forceinline__ uint32_t lap() const { return lap_; }
  __device__ __forceinline__ uint32_t k_stage() const {
    return C.persistent ? lap_ % C.k_stages() : 0;
  }

  __device__ __forceinline__ KeyBlockWalk next() const {
    KeyBlockWalk after = *this;
    ++after.lap_;
    return after;
  }

  __device__ __forceinline__ void wait_for_k(BackwardAddresses<C> at) const {
    ptx::mbarrier_wait_parity(at.k_pipeline().full(k_stage()), lap_ / C.k_stages() % 2);
  }
  __device__ __forceinline__ void wait_for_v(BackwardAddresses<C> at) const {
    ptx::mbarrier_wait_parity(at.v_pipeline().full(0), lap_ % 2);
  }

  // To the CTA's next key block, whose K is here then; false: there is none.
  __device__ __forceinline__ bool advance(BackwardAddresses<C> at, KeyBlockWork<C>& work) {
    static_assert(C.persistent);
    ++lap_;
    wait_for_k(at);
    const int tile = int(ptx::ld_shared_b32(at.drawn_tile(lap_)));
    if (tile < 0) return false;
    work.move_to(tile);
    return true;
  }

 private:
  uint32_t lap_ = 0;
};

// For the thread that loads.
template <BackwardConfig C>
class KeyBlockQueue {
 public:
  __device__ __forceinline__ KeyBlockQueue(const BackwardParams& params, BackwardAddresses<C> at)
      : params_(params), at_(at) {}

  // Behind the kernel that clears the counter.
  __device__ __forceinline__ void begin() { draw(); }

  // The tile of a lap from 1 on. Laps are asked for in turn, and again. Negative: there is none.
  __device__ __forceinline__ int tile(uint32_t lap) {
    if (lap > last_lap_) {
      const bool exists = drawn_ < params_.order.num_tiles();
      ptx::st_shared_b32(at_.drawn_tile(lap), exists ? uint32_t(drawn_) : kNoTile);
      last_lap_ = lap;
      if (exists) draw();
    }
    return int(ptx::ld_shared_b32(at_.drawn_tile(lap)));
  }

 private:
  static constexpr uint32_t kNoTile = ~0u;

  // From the first of dQ's counters, for which kernels without an order have no use. Nobody waits
  // for the answer before the next lap.
  __device__ __forceinline__ void draw() {
    drawn_ = int(gridDim.x) + atomicAdd(params_.scratch.dq_semaphore, 1);
  }

  const BackwardParams& params_;
  const BackwardAddresses<C> at_;
  uint32_t last_lap_ = 0;
  int drawn_ = 0;
};

// A thread's key block: of a persistent CTA its own, for warpgroups are at different ones.
template <BackwardConfig C>
using OwnKeyBlock = std::conditional_t<C.persistent, KeyBlockWork<C>, const KeyBlockWork<C>&>;

// The CTA's first. Of a persistent CTA found again: what lives from before the warpgroups part
// would be spilled.
template <BackwardConfig C>
__device__ __forceinline__ OwnKeyBlock<C> first_key_block(const KeyBlockWork<C>& work) {
  if constexpr (C.persistent) {
    KeyBlockWork<C> own = work;
    own.move_to(int(ptx::block_in_grid()));
    return own;
  } else {
    return work;
  }
}

}  // namespace fa3::hopper
