// SPDX-License-Identifier: Apache-2.0
// Block masks: the bits of blocks that are seen in part come with their K.
#pragma once

#include "engine/cuda/mask/bit_mask.cuh"
#include "engine/hopper/forward/policies/weights.cuh"

namespace fa3::hopper {

template <Kernel C>
requires(C.block_mask()) struct WeightsOf<C> : WeightVerbs {
  struct Registers {
    cuda::RowBitsOf<C.shape.block_n / 32> bits;
  };

  __device__ __forceinline__ explicit WeightsOf(const ForwardParams&) {}

  // Before K is released: its bits go with it.
  template <class Consumer, class Tile>
  __device__ __forceinline__ void read(const Consumer& c, Tile& r, uint32_t k_stage) const {
    if (c.tile.block() < c.masked_from()) return;
    r.bits.load(c.stages.at().mask_bits(k_stage), c.warpgroup * kRowsPerWarpgroup,
                c.tile.first_key() % kMaskBlock, int(thread_in_block() % kWarpgroupSize));
    __syncwarp();
  }
  template <class Consumer, class Tile>
  __device__ __forceinline__ void hide(const Consumer&, Tile& r) const {
    r.bits.hide(r.scores, int(thread_in_block() % kWarpgroupSize));
  }
};

}  // namespace fa3::hopper
