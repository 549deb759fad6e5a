// SPDX-License-Identifier: Apache-2.0
// The ring of CTAs of 64 query rows: room for two blocks of keys, one for those of even numbers in
// their segment and one for those of odd numbers. A block is loaded and released in two stages: the
// slabs whose values belong to the first consumer, and those of the second with the rope channels.
// Each thread has one of these, and says itself when it is done with a block.
#pragma once

#include "engine/hopper/latent/latent_shape.h"
#include "engine/hopper/pipeline/pipeline.cuh"
#include "engine/hopper/ptx/mbarrier_test.cuh"

namespace fa3::hopper {

// Barriers of the ring. Behind them, where rows of bytes become fp16 (latent_wide_byte_loader.cuh):
// the units of 16 keys each, of both blocks, as exponents of two.
template <LatentShape C, bool HasUnits = C.converts()>
struct LatentRingBarriers : PipelineBarriers<C.stages()> {};
template <LatentShape C>
struct LatentRingBarriers<C, true> {
  PipelineBarriers<C.stages()> of_stages;
  alignas(16) float units[2][kWarpsPerWarpgroup];
};

template <LatentShape C>
class LatentWideRing {
 public:
  static constexpr int kHalfSlabs = kValueSlabs / 2;

  __device__ __forceinline__ LatentWideRing(const Pipeline<C.stages()>& pipeline, uint32_t address)
      : pipeline_(pipeline), address_(address) {}

  // Slabs [first, end) of a block are its half.
  static FA3_HD constexpr int first_slab(int half) { return half * kHalfSlabs; }
  static FA3_HD constexpr int end_slab(int half) { return half == 0 ? kHalfSlabs : C.slabs(); }

  __device__ __forceinline__ uint32_t slab(int odd, int slab) const {
    return address_ + uint32_t((odd * C.slabs() + slab) * kSlabBytes);
  }
  // The unit of the keys that a warp of the loader has.
  __device__ __forceinline__ uint32_t unit(int odd, int warp) const {
    return pipeline_.address + uint32_t(sizeof(PipelineBarriers<C.stages()>) +
                                        (odd * kWarpsPerWarpgroup + warp) * sizeof(float));
  }
  __device__ __forceinline__ uint32_t full(int odd, int half) const {
    return pipeline_.full(stage(odd, half));
  }
  __device__ __forceinline__ void wait_full(int odd, int half) const {
    ptx::mbarrier_wait_parity(full(odd, half), phase(odd));
  }
  __device__ __forceinline__ void wait_empty(int odd, int half) const {
    ptx::mbarrier_wait_parity(pipeline_.empty(stage(odd, half)), phase(odd) ^ 1);
  }
  // For all lanes of the warp, at once.
  __device__ __forceinline__ bool is_empty(int odd, int half) const {
    return __all_sync(0xffffffff,
                      ptx::mbarrier_test_parity(pipeline_.empty(stage(odd, half)), phase(odd) ^ 1));
  }
  // By the consumer that the half's values belong to, behind its last product of them.
  __device__ __forceinline__ void release(int odd, int half) const {
    if (leads_warp()) pipeline_.release(stage(odd, half));
  }
  // The next even or odd block is meant from now on.
  __device__ __forceinline__ void next(int odd) { phases_ ^= 1u << odd; }

 private:
  static __device__ __forceinline__ uint32_t stage(int odd, int half) {
    return uint32_t(2 * odd + half);
  }
  __device__ __forceinline__ uint32_t phase(int odd) const { return phases_ >> odd & 1; }

  const Pipeline<C.stages()> pipeline_;
  const uint32_t address_;
  uint32_t phases_ = 0;  // a bit each of even and odd blocks
};

}  // namespace fa3::hopper
