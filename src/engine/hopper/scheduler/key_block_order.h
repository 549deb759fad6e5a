// SPDX-License-Identifier: Apache-2.0
// The backward's tile scheduler: which key block a CTA has. Longest blocks first (LPT), section by
// section. Plain constexpr, tested on the host.
#pragma once

#include "core/macros.h"

namespace fa3::hopper {

// The query heads that share keys may be split, each split with a CTA of its own.
struct KeyBlockIndex {
  int n_block;
  int kv_head;
  int batch;
  int head_split;
};

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
  unsigned char head_splits = 1;  // of the query heads of a kv head

  FA3_HD constexpr int num_tiles() const {
    return num_n_blocks * num_kv_heads * num_batches * head_splits;
  }

  FA3_HD constexpr KeyBlockIndex at(int tile) const { return at(tile, head_splits); }
  // For kernels that split no heads.
  FA3_HD constexpr KeyBlockIndex unsplit_at(int tile) const { return at(tile, 1); }

 private:
  FA3_HD constexpr KeyBlockIndex at(int tile, int splits) const {
    const int section = tile / (section_heads * num_n_blocks) * section_heads;
    const bool last = section >= last_section;
    const int first_head = last ? last_section : section;
    const int heads = last ? num_kv_heads * num_batches * splits - last_section : section_heads;
    const int in_section = tile - first_head * num_n_blocks;
    const int split = first_head + in_section % heads, head = split / splits;
    const int n = in_section / heads;
    return {last_keys_first ? num_n_blocks - 1 - n : n, head % num_kv_heads, head / num_kv_heads,
            split % splits};
  }
};

}  // namespace fa3::hopper
