// SPDX-License-Identifier: Apache-2.0
// The backward's tile scheduler: which key block a CTA, or a pair of them, has. Longest blocks
// first (LPT), section by section. Plain constexpr, tested on the host.
#pragma once

#include "core/macros.h"
#include "engine/cuda/tile/divisor.h"

namespace fa3::hopper {

// The steps of a key block, through the queries of all heads that share it, may be split, each
// split with a CTA of its own.
struct KeyBlockIndex {
  int n_block;
  int kv_head;
  int batch;
  int step_split;
};

// Two splits add to one sum: in either order, the sum has the same bits. Postprocess adds up the
// sums of a key block in their order, so dK and dV repeat bit by bit.
inline constexpr int kSplitsOfSum = 2;
FA3_HD constexpr int sums_of_splits(int splits) {
  return (splits + kSplitsOfSum - 1) / kSplitsOfSum;
}

// Heads, or splits of them, come in sections whose Q, dO and dQ fit the L2 cache. Within a section
// the first key blocks of all heads come first, which under a causal mask see the most queries. The
// last section has more heads where that evens out the SMs: enough short tiles must be left at the
// very end. In deterministic calls a key block waits for those that add to dQ before it (dq_order),
// so these must come first.
struct KeyBlockOrder {
  int num_n_blocks;
  int num_kv_heads;
  int num_batches;
  int section_heads;  // or splits of heads
  int last_section;   // its first head, of all batch entries
  bool last_keys_first;
  unsigned char step_splits = 1;  // of a key block's steps

  // What a CTA divides by before it can load anything. Extents that no launch has may overflow.
  cuda::Divisor by_n_blocks = num_n_blocks;
  cuda::Divisor by_section_heads = section_heads;
  cuda::Divisor by_last_heads =
      int(unsigned(num_kv_heads) * unsigned(num_batches) * step_splits - unsigned(last_section));
  cuda::Divisor by_kv_heads = num_kv_heads;
  cuda::Divisor by_step_splits = step_splits;

  FA3_HD constexpr int num_tiles() const {
    return num_n_blocks * num_kv_heads * num_batches * step_splits;
  }

  FA3_HD constexpr KeyBlockIndex at(int tile) const {
    const Place place = place_of(tile);
    const int head = place.split / by_step_splits;
    return index(place.n, head, place.split - head * step_splits);
  }
  // For kernels that split no steps.
  FA3_HD constexpr KeyBlockIndex unsplit_at(int tile) const {
    const Place place = place_of(tile);
    return index(place.n, place.split, 0);
  }

  // A split's part of a key block's steps. Each has as many, but the last ones fewer or none: those
  // of whole query heads, where the splits divide the heads.
  struct Share {
    int first;
    int count;
  };
  FA3_HD constexpr Share share_of(int steps, int split) const {
    const int each = (steps + step_splits - 1) / by_step_splits;
    const int first = split * each < steps ? split * each : steps;
    return {first, steps - first < each ? steps - first : each};
  }

 private:
  struct Place {
    int n;      // in the order of a head's key blocks
    int split;  // of all heads of all batch entries
  };

  FA3_HD constexpr Place place_of(int tile) const {
    const int section = tile / by_n_blocks / by_section_heads * section_heads;
    const bool last = section >= last_section;
    const int first = last ? last_section : section;
    const int in_section = tile - first * num_n_blocks;
    const int n = last ? in_section / by_last_heads : in_section / by_section_heads;
    return {n, first + in_section - n * (last ? by_last_heads : by_section_heads)};
  }

  FA3_HD constexpr KeyBlockIndex index(int n, int head, int split) const {
    const int batch = head / by_kv_heads;
    return {last_keys_first ? num_n_blocks - 1 - n : n, head - batch * num_kv_heads, batch, split};
  }
};

}  // namespace fa3::hopper
