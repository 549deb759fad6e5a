// SPDX-License-Identifier: Apache-2.0
// The mask policy of kernels with sliding windows: keys end on the right (right_edge.h) and begin on
// the left, both at diagonals that move by a key a query.
#pragma once

#include "engine/cuda/right_edge.h"

namespace fa3::cuda {

struct KeyWindow {
  static constexpr bool kHidesLeft = true;
  static constexpr bool kHidesRight = true;
  RightEdge right;
  int first_begin;  // the first query sees no key below this; the i-th none below first_begin + i
  int last_begin;   // of the last query; at most 0 where the left side is not masked

  // For the queries [q_begin, q_end), q_begin < q_end.
  static FA3_HD constexpr KeyWindow of(const MaskRuleOf<int>& mask, int q_begin, int q_end,
                                       int seqlen_q, int seqlen_k) {
    const RightEdge right = RightEdge::of(mask, q_begin, q_end, seqlen_q, seqlen_k);
    if (mask.left == mask.kUnbounded) return {right, kFarLeft, 0};
    const int first_begin = q_begin + seqlen_k - seqlen_q - mask.left;
    return {right, first_begin, first_begin + q_end - 1 - q_begin};
  }

  // For queries that see nothing.
  static FA3_HD constexpr KeyWindow of_nothing() { return {RightEdge::of_nothing(), kFarLeft, 0}; }

  // The same, keys counted from `first_key`.
  FA3_HD constexpr KeyWindow from(int first_key) const {
    return {right.from(first_key), first_begin - first_key, last_begin - first_key};
  }

  FA3_HD constexpr int end_of(int query) const { return right.end_of(query); }
  FA3_HD constexpr int begin_of(int query) const { return first_begin + query; }
  FA3_HD constexpr bool hides_left(int block_begin) const { return block_begin < last_begin; }

 private:
  static constexpr int kFarLeft = -(1 << 29);  // stays negative for all of a tile's queries
};

}  // namespace fa3::cuda
