// SPDX-License-Identifier: Apache-2.0
// Keys and values of the blocks in a list: where a block is seen in part, its bits travel with its
// K. Next: producer.cuh.
#pragma once

#include "engine/cuda/lists/block_list.h"
#include "engine/hopper/forward/policies/weights_listed.cuh"
#include "engine/hopper/forward/producer/load_tma_pages.cuh"
#include "engine/hopper/ptx/bulk.cuh"

namespace fa3::hopper {

// Sequences that lie beside each other: keys past a sequence's end are zeros.
template <Kernel C>
class SequenceKv : public ClippedKv<C> {
  using Stages = ClippedKv<C>;
  using Stages::k_map, Stages::load_clipped, Stages::place_of, Stages::v_map;

 public:
  using Stages::Stages;

  __device__ __forceinline__ ptx::TileCoordinates block_of(const TileKeys& keys, int number,
                                                           bool) const {
    return place_of(keys, number);
  }
  __device__ __forceinline__ void load_k(const ptx::TileCoordinates& block, int more_bytes) {
    load_clipped(k_map(), Stages::kK, block, more_bytes);
  }
  __device__ __forceinline__ void load_v(const ptx::TileCoordinates& block) {
    load_clipped(v_map(), Stages::kV, block);
  }
};

template <Kernel C>
using KvOfLists = std::conditional_t<C.general(), SequenceKv<C>, DenseKv<C>>;

template <Kernel C>
class ListedKv : public KvOfLists<C> {
  using Base = KvOfLists<C>;
  using Base::at_, Base::kv_;

 public:
  struct Block {
    ptx::TileCoordinates keys;
    const uint32_t* bits;
  };
  using Base::Base;

  __device__ __forceinline__ Block block_of(const TileKeys& keys, int number, bool starts) const {
    constexpr int kSteps = kMaskBlock / C.shape.block_n;  // of a block
    const cuda::ListedBlock listed = keys.listed[number / kSteps];
    return {Base::block_of(keys, listed.block * kSteps + number % kSteps, starts), listed.bits};
  }
  __device__ __forceinline__ void load_k(const Block& block) {
    const uint32_t stage = kv_.stage();
    Base::load_k(block.keys, block.bits ? cuda::kMaskBits : 0);
    if (!block.bits) return;
    ptx::cp_async_bulk_load(mask_bits(at_, stage), block.bits, cuda::kMaskBits,
                            at_.loaded_pipeline().full(stage));
  }
  __device__ __forceinline__ void load_v(const Block& block) { Base::load_v(block.keys); }
};

template <Kernel C>
struct KvLoaderOf<C, KvLoaderKind::kListed> : PlainKv {
  using Loads = ListedKv<C>;
  using Scales = NoTileScales<C>;
  using Helper = NoHelper;
};

}  // namespace fa3::hopper
