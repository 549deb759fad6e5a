// SPDX-License-Identifier: Apache-2.0
// The policies of extra outputs: GateOf<C> finishes O, LogitsOf<C> keeps the largest score. Both do
// nothing here. The source of a kernel that is compiled at run time includes the others:
//   gated_output.cuh  O is multiplied by a gate
//   max_logit.cuh     the largest score of each head
#pragma once

#include "engine/hopper/combine/combine_row.cuh"
#include "engine/hopper/forward_params.h"

namespace fa3::hopper {

template <Kernel C>
struct GateOf {
  static_assert(!C.gated(), "the source of this kernel does not include its gate");

  struct Registers {};  // of a thread, from end_tile() on

  template <class Consumer, class Work>
  static __device__ __forceinline__ void begin_tile(const Consumer&, const Work&) {}
  // Before the finished tile's last product is waited for.
  template <class Consumer>
  static __device__ __forceinline__ void end_tile(const Consumer&, Registers&) {}
  // Returns the policy that finishes a warp's rows of O, `values` included.
  template <class Values>
  static __device__ __forceinline__ Values values(const ForwardParams&, const cuda::QueryRows&, int,
                                                  const Registers&, const Values& values) {
    return values;
  }
};

// `c` is the Consumer, `r` the ThreadTile.
struct NoLogits {
  static constexpr bool kHides = false;  // see_products() has left what the mask hides at -inf
  struct Registers {};                   // of a thread, for each tile

  // Once a tile; once a block, with its products there and with its P; and before the finished tile
  // leaves. The largest P follows the reference.
  template <class Tile>
  static __device__ __forceinline__ void start(Tile&) {}
  template <class Consumer, class Tile>
  static __device__ __forceinline__ void see_products(const Consumer&, Tile&) {}
  template <int Begin = 0, int End = 0, class Tile>  // 0: to the last
  static __device__ __forceinline__ void see_weights(Tile&) {}
  template <class Tile>
  static __device__ __forceinline__ void rescale(Tile&, const float (&)[kRowsPerThread]) {}
  template <class Consumer, class Tile>
  static __device__ __forceinline__ void finish(const Consumer&, const Tile&) {}
};

template <Kernel C>
struct LogitsOf : NoLogits {
  static_assert(!C.outputs.max_logit,
                "the source of this kernel does not include its largest score");
};
template <Kernel C>
using SeenLogits = typename LogitsOf<C>::Registers;

}  // namespace fa3::hopper
