// SPDX-License-Identifier: Apache-2.0
//
// Which keys a block of queries needs, and which of them need no mask. Both ends of a row's key
// range grow with the row, so the first and the last row of the block decide.
#pragma once

#include "core/mask_rule.h"

namespace fa3 {

struct BlockRange {
  KeyRange visible;  // seen by at least one row of the block
  KeyRange free;     // seen by every row of the block: no mask needed
};

// For the queries [q_begin, q_end), q_begin < q_end.
FA3_HD constexpr BlockRange block_range(const MaskRule& mask, int64_t q_begin, int64_t q_end,
                                        int64_t seqlen_q, int64_t seqlen_k) {
  const KeyRange first = mask.keys_of(q_begin, seqlen_q, seqlen_k);
  const KeyRange last = mask.keys_of(q_end - 1, seqlen_q, seqlen_k);
  return {.visible = {first.begin, last.end}, .free = {last.begin, first.end}};
}

// The mirror image: which queries see at least one of the keys [k_begin, k_end), k_begin < k_end.
// A half-open range of query rows, for backward passes that walk over key blocks.
FA3_HD constexpr KeyRange query_range(const MaskRule& mask, int64_t k_begin, int64_t k_end,
                                      int64_t seqlen_q, int64_t seqlen_k) {
  const int64_t offset = seqlen_k - seqlen_q;
  KeyRange rows{0, seqlen_q};
  if (mask.right != MaskRule::kUnbounded && k_begin - offset - mask.right > rows.begin) {
    rows.begin = k_begin - offset - mask.right;
  }
  if (mask.left != MaskRule::kUnbounded && k_end - 1 - offset + mask.left + 1 < rows.end) {
    rows.end = k_end - 1 - offset + mask.left + 1;
  }
  return rows;
}

}  // namespace fa3
