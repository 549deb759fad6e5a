// SPDX-License-Identifier: Apache-2.0
// The key blocks of a persistent CTA, one after the other: Q, K, V and dO of the next are on their
// way while dK and dV of the last leave. A helper loads, as far ahead as stages are free. It draws
// a tile from one counter when it has loaded a key block's last queries, and leaves in shared
// memory which it is before its K: whoever sees a K full may read that. The longest come first, as
// the hardware deals them to CTAs that end. Other kernels' CTAs have one key block. Next:
// query_loader.cuh.
//
// What a key block leaves, and who must be done with it before it is overwritten:
//
//   K    two stages    dQ's warps, and of each warpgroup of keys the thread that stores: then all
//                      warps are done with the lap's record, too, but for those still entering the
//                      next one (kLaps)
//   V    one           dQ's warpgroup says so when the last dS is full: the last product with V
//                      came before it. Key blocks that no query sees have none
//   dK, dV             leave through the warpgroup's part of the stage of dS behind the last one's.
//                      Its own first dS waits for their copies (KeyGradients::wait_for_copies)
#pragma once

#include "engine/hopper/backward/backward_smem.cuh"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/ptx/smem.cuh"

namespace fa3::hopper {

// For all threads.
template <BackwardConfig C>
class KeyBlockWalk {
 public:
  __device__ __forceinline__ bool is_at_first() const { return !C.persistent() || lap_ == 0; }
  __device__ __forceinline__ uint32_t lap() const { return lap_; }
  __device__ __forceinline__ uint32_t k_stage() const {
    return C.persistent() ? lap_ % C.k_stages() : 0;
  }

  __device__ __forceinline__ void wait_for_k(BackwardAddresses<C> at) const {
    ptx::mbarrier_wait_parity(at.k_pipeline().full(k_stage()), lap_ / C.k_stages() % 2);
  }
  __device__ __forceinline__ void wait_for_v(BackwardAddresses<C> at,
                                             const KeyBlockWork<C>& work) const {
    uint32_t loaded_before = lap_;
    if constexpr (C.persistent() && C.block_mask()) loaded_before = uint32_t(work.values_before());
    ptx::mbarrier_wait_parity(at.v_pipeline().full(0), loaded_before % 2);
  }

  // Whether the CTA had a step before that of `block`, the key block's `step`-th.
  __device__ __forceinline__ bool has_step_before(
      int step, const typename KeyBlockWork<C>::Block& block) const {
    if constexpr (C.persistent() && C.block_mask()) return block.step > 0;
    return step > 0 || !is_at_first();
  }

  // To the CTA's next key block, whose K is here then; false: there is none.
  __device__ __forceinline__ bool advance(BackwardAddresses<C> at, KeyBlockWork<C>& work) {
    static_assert(C.persistent());
    ++lap_;
    wait_for_k(at);
    if constexpr (C.block_mask()) {
      return work.enter(lap_);
    } else {
      const int tile = int(ptx::ld_shared_b32(at.drawn_tile(lap_)));
      if (tile >= 0) work.move_to(tile);
      return tile >= 0;
    }
  }

 private:
  uint32_t lap_ = 0;
};

// A thread's key block: of a persistent CTA its own, for warpgroups are at different ones.
template <BackwardConfig C>
using OwnKeyBlock = std::conditional_t<C.persistent(), KeyBlockWork<C>, const KeyBlockWork<C>&>;

// The CTA's first. Of a persistent CTA found again: what lives from before the warpgroups part
// would be spilled.
template <BackwardConfig C>
__device__ __forceinline__ OwnKeyBlock<C> first_key_block(const KeyBlockWork<C>& work) {
  if constexpr (C.persistent()) {
    KeyBlockWork<C> own = work;
    if constexpr (C.block_mask()) {
      own.enter(0);
    } else {
      own.move_to(int(ptx::block_in_grid()));
    }
    return own;
  } else {
    return work;
  }
}

}  // namespace fa3::hopper
