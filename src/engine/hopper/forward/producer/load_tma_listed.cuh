// SPDX-License-Identifier: Apache-2.0
// Keys and values of the blocks in a list: where a block is seen in part, its bits travel with its
// K. Next: producer.cuh.
#pragma once

#include "engine/hopper/forward/producer/load_tma.cuh"
#include "engine/hopper/ptx/bulk.cuh"

namespace fa3::hopper {

template <ForwardConfig C>
class ListedKv : public DenseKv<C> {
  using Dense = DenseKv<C>;
  using Dense::at_, Dense::kv_;

 public:
  struct Block {
    ptx::TileCoordinates keys;
    const uint32_t* bits;
  };
  using Dense::Dense;

  __device__ __forceinline__ Block block_of(const TileKeys& keys, int number, bool starts) const {
    const cuda::ListedBlock listed = keys.listed[number];
    return {Dense::block_of(keys, listed.block, starts), listed.bits};
  }
  __device__ __forceinline__ void load_k(const Block& block) {
    const uint32_t stage = kv_.stage();
    Dense::load_k(block.keys, block.bits ? cuda::kMaskBits : 0);
    if (!block.bits) return;
    ptx::cp_async_bulk_load(at_.mask_bits(stage), block.bits, cuda::kMaskBits,
                            at_.loaded_pipeline().full(stage));
  }
  __device__ __forceinline__ void load_v(const Block& block) { Dense::load_v(block.keys); }
};

template <ForwardConfig C>
struct KvLoaderOf<C, KvLoaderKind::kListed> {
  using Loads = ListedKv<C>;
  using Scales = NoTileScales<C>;
  using Helper = NoHelper;
};

}  // namespace fa3::hopper
