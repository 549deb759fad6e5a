// SPDX-License-Identifier: Apache-2.0
// The mask policy of kernels with sliding windows: keys end on the right (right_edge.h) and begin
// on the left, both at diagonals that move by a key a query. Chunks narrow that to a query's own
// one.
#pragma once

#include "engine/cuda/mask/right_edge.h"

namespace fa3::cuda {

struct KeyWindow {
  static constexpr bool kHidesLeft = true;
  static constexpr bool kHidesRight = true;
  RightEdge right;
  int first_begin;  // the first query sees no key below this; the i-th none below first_begin + i
  int last_begin;   // of the last query; at most 0 where the left side is not masked
  int chunk;        // keys of one; MaskRuleOf::kNoChunks: none
  int first_chunk;  // where that of the first query begins
  int diagonal;     // of the first query

  // For the queries [q_begin, q_end), q_begin < q_end.
  static FA3_HD constexpr KeyWindow of(const MaskRuleOf<int>& mask, int q_begin, int q_end,
                                       int seqlen_q, int seqlen_k) {
    const int diagonal = q_begin + seqlen_k - seqlen_q;
    const bool bounded = mask.left != mask.kUnbounded, chunked = mask.chunk != mask.kNoChunks;
    KeyWindow window{.right = RightEdge::of(mask, q_begin, q_end, seqlen_q, seqlen_k),
                     .first_begin = bounded ? diagonal - mask.left : kFarLeft,
                     .last_begin = 0,
                     .chunk = mask.chunk,
                     .first_chunk = chunked ? mask.chunk_begin(diagonal) : 0,
                     .diagonal = diagonal};
    if (bounded || chunked) window.last_begin = window.begin_of(q_end - 1 - q_begin);
    return window;
  }

  // For queries that see nothing.
  static FA3_HD constexpr KeyWindow of_nothing() {
    return {RightEdge::of_nothing(), kFarLeft, 0, MaskRuleOf<int>::kNoChunks, 0, 0};
  }

  // This window with keys counted from `first_key`.
  FA3_HD constexpr KeyWindow from(int first_key) const {
    return {.right = right.from(first_key),
            .first_begin = first_begin - first_key,
            .last_begin = last_begin - first_key,
            .chunk = chunk,
            .first_chunk = first_chunk - first_key,
            .diagonal = diagonal - first_key};
  }

  FA3_HD constexpr int end_of(int query) const {
    const int end = right.end_of(query);
    if (chunk == MaskRuleOf<int>::kNoChunks) return end;
    const int chunk_end = chunk_begin(query) + chunk;
    return end < chunk_end ? end : chunk_end;
  }
  FA3_HD constexpr int begin_of(int query) const {
    const int begin = first_begin + query;
    if (chunk == MaskRuleOf<int>::kNoChunks) return begin;
    const int own = chunk_begin(query);
    return begin > own ? begin : own;
  }
  FA3_HD constexpr bool hides_left(int block_begin) const { return block_begin < last_begin; }

 private:
  static constexpr int kFarLeft = -(1 << 29);  // stays negative for all of a tile's queries

  // Without a division, which takes registers: a tile has few queries.
  FA3_HD constexpr int chunk_begin(int query) const {
    int begin = first_chunk;
    while (begin + chunk <= diagonal + query) begin += chunk;
    return begin;
  }
};

}  // namespace fa3::cuda
