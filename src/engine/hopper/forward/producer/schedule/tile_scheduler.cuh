// SPDX-License-Identifier: Apache-2.0
// Which tiles a CTA computes, one after the other, each as the work tile that the consumers get.
// A scheduler of the forward kernel is a type; its file says for which kernels:
//   dense_tiles.cuh     one length for all sequences: tiles by number (scheduler/tile_order.h)
//   varlen_tiles.cuh    the same, or by the list that varlen_metadata.cu has made
//   split_tiles.cuh     parts of tiles (scheduler/split_kv.h), or whole ones if none is split
//   stream_k_tiles.cuh  parts of tiles alone
//   listed_tiles.cuh    whole tiles whose key blocks stand in a list (block masks)
// The source of a kernel (instances/) includes those that it needs.
//
// The producer asks next() for a work tile, announces it at once, or, if describes_later() says so,
// after describe_rest(), and asks draw_next() while the tile's last blocks are loaded. Consumers
// call keep_split() with the rows of each tile, which returns whether it has stored them as those
// of a split, and combine() behind their last tile. kStartsEarly: the kernel starts while the one
// before still runs (PDL). Next: producer.cuh.
#pragma once

#include "engine/hopper/config/kernel.h"

namespace fa3::hopper {

// Schedulers of whole tiles.
struct NoSplits {
  template <bool IsLast, class... Args>
  static __device__ __forceinline__ constexpr bool keep_split(const Args&...) {
    return false;
  }
};

template <Kernel C, SchedulerKind = C.scheduler()>
struct SchedulerOf;

template <Kernel C>
using TileScheduler = typename SchedulerOf<C>::Type;

}  // namespace fa3::hopper
