// SPDX-License-Identifier: Apache-2.0
// Block masks: the bits of blocks that are seen in part come with their K.
#pragma once

#include "engine/cuda/mask/bit_mask.cuh"
#include "engine/hopper/forward/policies/weights.cuh"
#include "engine/hopper/forward/smem_plan.cuh"

namespace fa3::hopper {

// The bits of the blocks whose K is in a stage, where they are seen in part.
template <Kernel C>
struct MaskBitsSmem {
  alignas(128) unsigned char stages[C.shape.kv_stages][cuda::kMaskBits];
};
template <Kernel C>
__device__ __forceinline__ uint32_t mask_bits(SmemAddresses<C> at, uint32_t stage) {
  return at.base + uint32_t{offsetof(SmemPlan<C>, weights)} + stage * cuda::kMaskBits;
}

template <Kernel C>
requires(C.block_mask()) struct WeightsOf<C> : WeightVerbs {
  struct Registers {
    cuda::RowBitsOf<C.shape.block_n / 32> bits;
  };
  using Smem = MaskBitsSmem<C>;

  __device__ __forceinline__ explicit WeightsOf(const ForwardParams&) {}

  // Before K is released: its bits go with it.
  template <class Consumer, class Tile>
  __device__ __forceinline__ void read(const Consumer& c, Tile& r, uint32_t k_stage) const {
    if (c.tile.block() < c.masked_from()) return;
    r.bits.load(mask_bits(c.stages.at(), k_stage), c.warpgroup * kRowsPerWarpgroup,
                c.tile.first_key() % kMaskBlock, int(thread_in_block() % kWarpgroupSize));
    __syncwarp();
  }
  template <class Consumer, class Tile>
  __device__ __forceinline__ void hide(const Consumer&, Tile& r) const {
    r.bits.hide(r.scores, int(thread_in_block() % kWarpgroupSize));
  }
};

}  // namespace fa3::hopper
