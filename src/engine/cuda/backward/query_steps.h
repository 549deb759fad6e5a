// SPDX-License-Identifier: Apache-2.0
// Which query blocks a key block goes through, and which of them need no mask; in which order key
// blocks add to dQ; where a sequence's query blocks lie in the scratch. Pure functions of plain
// numbers, from the mask rule in core/.
#pragma once

#include "core/mask/block_range.h"

namespace fa3::cuda {

// Lengths and mask of a dense kernel: all tiles of a launch share them.
struct BackwardExtents {
  static constexpr bool kHidesRight = false;  // no key has queries behind that must not see it
  int seqlen_q;
  int seqlen_k;
  bool causal;

  FA3_HD constexpr MaskRuleOf<int> mask() const {
    return {MaskRuleOf<int>::kUnbounded, causal ? 0 : MaskRuleOf<int>::kUnbounded};
  }
};

// Lengths and mask of one sequence, with windows and chunks, for a block of its keys.
struct SequenceExtents {
  static constexpr bool kHidesRight = true;
  int seqlen_q;
  int seqlen_k;
  MaskRuleOf<int> rule;
  int first_chunk;  // the first key of the chunk that has the block's first key

  static FA3_HD constexpr SequenceExtents of(int seqlen_q, int seqlen_k, MaskRuleOf<int> rule,
                                             int first_key) {
    const bool chunked = rule.chunk != rule.kNoChunks;
    return {seqlen_q, seqlen_k, rule, chunked ? rule.chunk_begin(first_key) : 0};
  }

  FA3_HD constexpr MaskRuleOf<int> mask() const { return rule; }
  // The first key of the chunk that has `key`, a key of the block. A loop instead of a division,
  // which would lengthen the loops of kernels without chunks too.
  FA3_HD constexpr int chunk_begin(int key) const {
    int begin = first_chunk;
    while (begin + rule.chunk <= key) begin += rule.chunk;
    return begin;
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
  // Not where the range is merely empty: dq_order_of() counts every key block that has rows before
  // its end and behind its begin, even if, beside the diagonal of a chunk, none of them sees a key.
  if (Extents::kHidesRight && (rows.begin >= e.seqlen_q || rows.end <= 0)) return {0, 0};
  return {rows.begin / block_m, (rows.end + block_m - 1) / block_m};
}

// The first query that sees a key; no query sees a key past the end.
inline constexpr int kNoQuery = 0x7fffffff;

FA3_HD constexpr int first_query(const BackwardExtents& e, int key) {
  if (key >= e.seqlen_k) return kNoQuery;
  return e.causal ? key + e.seqlen_q - e.seqlen_k : 0;
}
FA3_HD constexpr int first_query(const SequenceExtents& e, int key) {
  if (key >= e.seqlen_k) return kNoQuery;
  const int level = e.seqlen_q - e.seqlen_k;  // the query at the same position as key 0
  const int first = e.rule.right == e.rule.kUnbounded ? 0 : key + level - e.rule.right;
  if (e.rule.chunk == e.rule.kNoChunks) return first;
  const int in_chunk = e.chunk_begin(key) + level;
  return first > in_chunk ? first : in_chunk;
}

// The query after the last that sees the key, unless the queries end before.
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

// The queries that see all of the keys [first_key, first_key + num_keys): they need no mask.
template <class Extents>
FA3_HD constexpr KeyRangeOf<int> unmasked_queries(const Extents& e, int first_key, int num_keys) {
  return {first_query(e, first_key + num_keys - 1), end_query(e, first_key)};
}

// The mask policy of a tile whose rows are keys, from first_key on, and whose columns are queries
// (cuda/mask/mask.cuh).
template <class Extents>
struct QueryEdge {
  static constexpr bool kHidesLeft = true;
  static constexpr bool kHidesRight = Extents::kHidesRight;
  const Extents& extents;
  int first_key;

  FA3_HD constexpr int begin_of(int row) const { return first_query(extents, first_key + row); }
  FA3_HD constexpr int end_of(int row) const { return end_query(extents, first_key + row); }
};

// The order of additions to a query block's dQ in deterministic calls: how many key blocks add
// before this one. It is the order of launches: dense kernels without a mask begin with the first
// key block, others with the last, where causal queries begin.
FA3_HD constexpr bool last_keys_first(const BackwardExtents& e) {
  return e.causal;
}
FA3_HD constexpr bool last_keys_first(const SequenceExtents&) {
  return true;
}

template <class Extents>
FA3_HD constexpr int dq_order_of(const Extents& e, int n_block, int block_n, int m_block,
                                 int block_m) {
  if (!last_keys_first(e)) return n_block;
  const int end_row = (m_block + 1) * block_m < e.seqlen_q ? (m_block + 1) * block_m : e.seqlen_q;
  const KeyRangeOf<int> keys = e.mask().keys_of(end_row - 1, e.seqlen_q, e.seqlen_k);
  return (keys.end - 1) / block_n - n_block;
}

// Where a sequence's query blocks begin. Packed sequences share one batch entry. A sequence begins
// at the block of its first row, plus one block for each sequence before it: enough for any
// lengths.
struct ScratchPlace {
  int batch;
  int first_block;

  static FA3_HD constexpr ScratchPlace of_packed(int sequence, int first_row, int block_m) {
    return {0, first_row / block_m + sequence};
  }
};

}  // namespace fa3::cuda
