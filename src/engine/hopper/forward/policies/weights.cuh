// SPDX-License-Identifier: Apache-2.0
// The policy of weights, WeightsOf<C>: which of P count, before the softmax (masks) and after it
// (dropout). All but what the mask hides, here. The source of a kernel includes the others:
//   weights_dropped.cuh  dropout
//   weights_listed.cuh   the bits of a block mask's blocks
#pragma once

#include "engine/cuda/mask/mask.cuh"
#include "engine/cuda/softmax/epilogue.cuh"
#include "engine/hopper/forward_params.h"

namespace fa3::hopper {

template <Kernel C>
struct WeightsOf;

// What the consumer asks, where nothing is dropped. `c` is the Consumer, `r` the ThreadTile.
struct WeightVerbs {
  struct Registers {};  // of a thread, for each block
  struct Smem {};

  // Once a tile.
  template <class Consumer, class Work>
  __device__ __forceinline__ void begin_tile(const Consumer&, const Work&) {}
  // Once a block: before the warp waits for its K, behind its products, and where P is packed.
  template <class Consumer, class Tile>
  __device__ __forceinline__ void draw_early(const Consumer&, Tile&) const {}
  template <class Consumer, class Tile>
  __device__ __forceinline__ void read(const Consumer&, Tile&, uint32_t) const {}
  template <class Consumer, class Tile>
  __device__ __forceinline__ void draw_late(const Consumer&, Tile&) const {}
  template <class Consumer, class Tile>
  __device__ __forceinline__ void drop(const Consumer&, Tile&) const {}

  // Scores of keys that a row does not see become -inf.
  template <class Consumer, class Tile>
  __device__ __forceinline__ void hide(const Consumer& c, Tile& r) const {
    mask_scores(r.scores, c.edge(), c.params.output.pack, int(thread_in_block() % kWarpgroupSize),
                c.tile.first_key());
  }
  // What the epilogue multiplies rows of O by.
  static __device__ __forceinline__ PlainValues values(const ForwardParams&) { return {}; }
};

template <Kernel C>
requires(!C.dropout() && !C.block_mask()) struct WeightsOf<C> : WeightVerbs {
  __device__ __forceinline__ explicit WeightsOf(const ForwardParams&) {}
};

}  // namespace fa3::hopper
