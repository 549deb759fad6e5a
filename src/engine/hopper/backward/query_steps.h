// SPDX-License-Identifier: Apache-2.0
// Which key block a thread block has, which query blocks it goes through, and which of them need no
// mask. Pure functions of plain numbers, from the mask rule in core/.
#pragma once

#include "core/block_range.h"

namespace fa3::hopper {

// What all tiles of a launch share.
struct BackwardExtents {
  int seqlen_q;
  int seqlen_k;
  bool causal;

  FA3_HD constexpr MaskRuleOf<int> mask() const {
    return {MaskRuleOf<int>::kUnbounded, causal ? 0 : MaskRuleOf<int>::kUnbounded};
  }
};

struct KeyBlockIndex {
  int n_block;
  int kv_head;
  int batch;
};

// Heads come in sections whose Q, dO and dQ fit the L2 cache; within a section the first key blocks
// of all heads come first, which under a causal mask have the longest way to go. Where key blocks add
// to dQ by turns (turn_of), those whose turn comes first must come first.
struct KeyBlockOrder {
  int num_n_blocks;
  int num_kv_heads;
  int num_batches;
  int section_heads;
  bool last_keys_first;

  FA3_HD constexpr int num_tiles() const { return num_n_blocks * num_kv_heads * num_batches; }

  FA3_HD constexpr KeyBlockIndex at(int tile) const {
    const int section_tiles = section_heads * num_n_blocks;
    const int first_head = tile / section_tiles * section_heads;
    const int heads_left = num_kv_heads * num_batches - first_head;
    const int heads = heads_left < section_heads ? heads_left : section_heads;
    const int in_section = tile % section_tiles;
    const int head = first_head + in_section % heads;
    const int n = in_section / heads;
    return {last_keys_first ? num_n_blocks - 1 - n : n, head % num_kv_heads, head / num_kv_heads};
  }
};

// The query blocks that see a key block, for each head of its group.
struct QuerySteps {
  int first_block;
  int end_block;

  FA3_HD constexpr int per_head() const {
    return end_block > first_block ? end_block - first_block : 0;
  }
};

FA3_HD constexpr QuerySteps query_steps(const BackwardExtents& e, int first_key, int num_keys,
                                        int block_m) {
  const int end_key = first_key + num_keys < e.seqlen_k ? first_key + num_keys : e.seqlen_k;
  const KeyRangeOf<int> rows = query_range(e.mask(), first_key, end_key, e.seqlen_q, e.seqlen_k);
  return {rows.begin / block_m, (rows.end + block_m - 1) / block_m};
}

// The first query that sees a key; of a key past the end, none does.
inline constexpr int kNoQuery = 0x7fffffff;

FA3_HD constexpr int first_query(const BackwardExtents& e, int key) {
  if (key >= e.seqlen_k) return kNoQuery;
  return e.causal ? key + e.seqlen_q - e.seqlen_k : 0;
}

// Where the keys [first_key, first_key + num_keys) need no mask any more: queries from here on see
// them all.
FA3_HD constexpr int free_from(const BackwardExtents& e, int first_key, int num_keys) {
  return first_query(e, first_key + num_keys - 1);
}

// When a key block's turn is to add to a query block, of all that do, from 0 on: causal, the blocks next
// to the diagonal add first, since they begin there.
FA3_HD constexpr int turn_of(const BackwardExtents& e, int n_block, int block_n, int m_block,
                             int block_m) {
  if (!e.causal) return n_block;
  const int end_row = (m_block + 1) * block_m < e.seqlen_q ? (m_block + 1) * block_m : e.seqlen_q;
  const KeyRangeOf<int> keys = e.mask().keys_of(end_row - 1, e.seqlen_q, e.seqlen_k);
  return (keys.end - 1) / block_n - n_block;
}

}  // namespace fa3::hopper
