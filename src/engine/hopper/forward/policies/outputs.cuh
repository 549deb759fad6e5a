// SPDX-License-Identifier: Apache-2.0
// The policies of extra outputs: GateOf<C> finishes O, LogitsOf<C> keeps the largest score. Both do
// nothing here. The source of a kernel that is
// compiled at run time includes the others:
//   gated_output.cuh  O is multiplied by a gate
//   max_logit.cuh     the largest score of each head
#pragma once

#include "engine/hopper/combine/combine_row.cuh"
#include "engine/hopper/forward_params.h"

namespace fa3::hopper {

template <Kernel C>
struct GateOf {
  static_assert(!C.gated(), "the source of this kernel does not include its gate");

  template <class Consumer, class Work>
  static __device__ __forceinline__ void begin_tile(const Consumer&, const Work&) {}
  // Returns the policy that finishes a warp's rows of O, `values` included.
  template <class Values>
  static __device__ __forceinline__ Values values(const ForwardParams&, const cuda::QueryRows&, int,
                                                  const Values& values) {
    return values;
  }
};

// `c` is the Consumer, `r` the ThreadTile.
template <Kernel C>
struct LogitsOf {
  static_assert(!C.outputs.max_logit,
                "the source of this kernel does not include its largest score");
  static constexpr bool kHides = false;  // see() has left what the mask hides at -inf
  struct Registers {};                   // of a thread, for each tile

  // Once a tile; once a block, with the products there; and before the finished tile leaves.
  template <class Tile>
  static __device__ __forceinline__ void start(Tile&) {}
  template <class Consumer, class Tile>
  static __device__ __forceinline__ void see(const Consumer&, Tile&) {}
  template <class Consumer, class Tile>
  static __device__ __forceinline__ void finish(const Consumer&, Tile&) {}
};

}  // namespace fa3::hopper
