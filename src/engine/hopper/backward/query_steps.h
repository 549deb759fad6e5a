// SPDX-License-Identifier: Apache-2.0
// Which key block a CTA has, which query blocks it goes through, and which of them need no
// mask; and where a sequence's query blocks lie in the scratch. Pure functions of plain numbers,
// from the mask rule in core/.
#pragma once

#include "core/block_range.h"

namespace fa3::hopper {

// Lengths and mask of dense kernels, which all tiles of a launch share.
struct BackwardExtents {
  static constexpr bool kHidesRight = false;  // no key has queries behind that must not see it
  int seqlen_q;
  int seqlen_k;
  bool causal;

  FA3_HD constexpr MaskRuleOf<int> mask() const {
    return {MaskRuleOf<int>::kUnbounded, causal ? 0 : MaskRuleOf<int>::kUnbounded};
  }
};

// Those of one sequence, with a window, for a block of its keys.
struct SequenceExtents {
  static constexpr bool kHidesRight = true;
  int seqlen_q;
  int seqlen_k;
  MaskRuleOf<int> rule;
  int first_chunk;  // where the chunk of the block's first key begins

  static FA3_HD constexpr SequenceExtents of(int seqlen_q, int seqlen_k, MaskRuleOf<int> rule,
                                             int first_key) {
    const bool chunked = rule.chunk != rule.kNoChunks;
    return {seqlen_q, seqlen_k, rule, chunked ? rule.chunk_begin(first_key) : 0};
  }

  FA3_HD constexpr MaskRuleOf<int> mask() const { return rule; }
  // Of a key of the block. A division would be a long split of the kernels' loops, whoever has
  // chunks.
  FA3_HD constexpr int chunk_begin(int key) const {
    int begin = first_chunk;
    while (begin + rule.chunk <= key) begin += rule.chunk;
    return begin;
  }
};

// The query heads that share keys may be split into equal shares, each with a CTA of its own.
struct KeyBlockIndex {
  int n_block;
  int kv_head;
  int batch;
  int share;
};

// Heads, or shares of them, come in sections whose Q, dO and dQ fit the L2 cache; within a section
// the first key blocks of all heads come first, which under a causal mask have the longest way to
// go. The last section has more heads where that evens out the SMs: enough short tiles must be left
// at the very end. Where key blocks add to dQ by turns (turn_of), those whose turn comes first must
// come first.
struct KeyBlockOrder {
  int num_n_blocks;
  int num_kv_heads;
  int num_batches;
  int section_heads;  // or shares
  int last_section;   // its first head, of all batch entries
  bool last_keys_first;
  unsigned char shares = 1;  // of a kv head

  FA3_HD constexpr int num_tiles() const {
    return num_n_blocks * num_kv_heads * num_batches * shares;
  }

  FA3_HD constexpr KeyBlockIndex at(int tile) const { return at(tile, shares); }
  // Of kernels that know no shares.
  FA3_HD constexpr KeyBlockIndex whole_at(int tile) const { return at(tile, 1); }

 private:
  FA3_HD constexpr KeyBlockIndex at(int tile, int shares_of_head) const {
    const int section = tile / (section_heads * num_n_blocks) * section_heads;
    const bool last = section >= last_section;
    const int first_head = last ? last_section : section;
    const int heads =
        last ? num_kv_heads * num_batches * shares_of_head - last_section : section_heads;
    const int in_section = tile - first_head * num_n_blocks;
    const int share = first_head + in_section % heads, head = share / shares_of_head;
    const int n = in_section / heads;
    return {last_keys_first ? num_n_blocks - 1 - n : n, head % num_kv_heads, head / num_kv_heads,
            share % shares_of_head};
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

template <class Extents>
FA3_HD constexpr QuerySteps query_steps(const Extents& e, int first_key, int num_keys,
                                        int block_m) {
  const int end_key = first_key + num_keys < e.seqlen_k ? first_key + num_keys : e.seqlen_k;
  if (Extents::kHidesRight && first_key >= end_key) return {0, 0};
  const KeyRangeOf<int> rows = query_range(e.mask(), first_key, end_key, e.seqlen_q, e.seqlen_k);
  if (Extents::kHidesRight && rows.empty()) return {0, 0};
  return {rows.begin / block_m, (rows.end + block_m - 1) / block_m};
}

// The first query that sees a key; of a key past the end, none does.
inline constexpr int kNoQuery = 0x7fffffff;

FA3_HD constexpr int first_query(const BackwardExtents& e, int key) {
  if (key >= e.seqlen_k) return kNoQuery;
  return e.causal ? key + e.seqlen_q - e.seqlen_k : 0;
}
FA3_HD constexpr int first_query(const SequenceExtents& e, int key) {
  if (key >= e.seqlen_k) return kNoQuery;
  const int level = e.seqlen_q - e.seqlen_k;  // of the query that is level with key 0
  const int first = e.rule.right == e.rule.kUnbounded ? 0 : key + level - e.rule.right;
  if (e.rule.chunk == e.rule.kNoChunks) return first;
  const int in_chunk = e.chunk_begin(key) + level;
  return first > in_chunk ? first : in_chunk;
}

// From this query on none sees the key, unless the queries end before.
FA3_HD constexpr int end_query(const BackwardExtents&, int) {
  return kNoQuery;
}
FA3_HD constexpr int end_query(const SequenceExtents& e, int key) {
  const int level = e.seqlen_q - e.seqlen_k;
  const int end = e.rule.left == e.rule.kUnbounded ? kNoQuery : key + level + e.rule.left + 1;
  if (e.rule.chunk == e.rule.kNoChunks) return end;
  const int in_chunk = e.chunk_begin(key) + e.rule.chunk + level;
  return end < in_chunk ? end : in_chunk;
}

// The queries that see all of the keys [first_key, first_key + num_keys): those need no mask.
template <class Extents>
FA3_HD constexpr KeyRangeOf<int> free_queries(const Extents& e, int first_key, int num_keys) {
  return {first_query(e, first_key + num_keys - 1), end_query(e, first_key)};
}

// The mask policy of a tile whose rows are keys, from first_key on, and whose columns are queries
// (cuda/mask.cuh).
template <class Extents>
struct QueryEdge {
  static constexpr bool kHidesLeft = true;
  static constexpr bool kHidesRight = Extents::kHidesRight;
  const Extents& extents;
  int first_key;

  FA3_HD constexpr int begin_of(int row) const { return first_query(extents, first_key + row); }
  FA3_HD constexpr int end_of(int row) const { return end_query(extents, first_key + row); }
};

// When a key block's turn is to add to a query block, of all that do, from 0 on. Key blocks go in
// the order in which they are launched: of dense kernels without a mask from the first, else from
// the last, which is where causal queries begin.
FA3_HD constexpr bool last_keys_first(const BackwardExtents& e) {
  return e.causal;
}
FA3_HD constexpr bool last_keys_first(const SequenceExtents&) {
  return true;
}

template <class Extents>
FA3_HD constexpr int turn_of(const Extents& e, int n_block, int block_n, int m_block, int block_m) {
  if (!last_keys_first(e)) return n_block;
  const int end_row = (m_block + 1) * block_m < e.seqlen_q ? (m_block + 1) * block_m : e.seqlen_q;
  const KeyRangeOf<int> keys = e.mask().keys_of(end_row - 1, e.seqlen_q, e.seqlen_k);
  return (keys.end - 1) / block_n - n_block;
}

// Where a sequence's query blocks begin. Packed sequences share one batch entry, of which each
// takes the blocks that its rows would touch, and one more for those before it: enough for any
// lengths.
struct ScratchPlace {
  int batch;
  int first_block;

  static FA3_HD constexpr ScratchPlace of_packed(int sequence, int first_row, int block_m) {
    return {0, first_row / block_m + sequence};
  }
};

}  // namespace fa3::hopper
