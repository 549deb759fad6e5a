// SPDX-License-Identifier: Apache-2.0
//
// Which keys a block of queries needs, and which of them need no mask. Both ends of a row's key
// range grow with the row, so the first and the last row of the block decide. Next: key_blocks.h.
#pragma once

#include <type_traits>

#include "core/mask/mask_rule.h"

namespace fa3 {

template <class Int>
struct BlockRangeOf {
  KeyRangeOf<Int> visible;  // seen by at least one row of the block
  KeyRangeOf<Int> free;     // seen by every row of the block: no mask needed

  // This range with keys counted from `first_key`.
  FA3_HD constexpr BlockRangeOf from(Int first_key) const {
    return {{visible.begin - first_key, visible.end - first_key},
            {free.begin - first_key, free.end - first_key}};
  }
};

using BlockRange = BlockRangeOf<int64_t>;

// For the queries [q_begin, q_end), q_begin < q_end.
template <class Int>
FA3_HD constexpr BlockRangeOf<Int> block_range(const MaskRuleOf<Int>& mask,
                                               std::type_identity_t<Int> q_begin,
                                               std::type_identity_t<Int> q_end,
                                               std::type_identity_t<Int> seqlen_q,
                                               std::type_identity_t<Int> seqlen_k) {
  const KeyRangeOf<Int> first = mask.keys_of(q_begin, seqlen_q, seqlen_k);
  const KeyRangeOf<Int> last = mask.keys_of(q_end - 1, seqlen_q, seqlen_k);
  return {.visible = {first.begin, last.end}, .free = {last.begin, first.end}};
}

// The mirror image: which queries see at least one of the keys [k_begin, k_end), k_begin < k_end.
// A half-open range of query rows, for backward passes that walk over key blocks.
template <class Int>
FA3_HD constexpr KeyRangeOf<Int> query_range(const MaskRuleOf<Int>& mask,
                                             std::type_identity_t<Int> k_begin,
                                             std::type_identity_t<Int> k_end,
                                             std::type_identity_t<Int> seqlen_q,
                                             std::type_identity_t<Int> seqlen_k) {
  const Int offset = seqlen_k - seqlen_q;
  KeyRangeOf<Int> rows{0, seqlen_q};
  if (mask.right != mask.kUnbounded && k_begin - offset - mask.right > rows.begin) {
    rows.begin = k_begin - offset - mask.right;
  }
  if (mask.left != mask.kUnbounded && k_end - 1 - offset + mask.left + 1 < rows.end) {
    rows.end = k_end - 1 - offset + mask.left + 1;
  }
  if (mask.chunk != mask.kNoChunks) {
    const Int begin = mask.chunk_begin(k_begin) - offset;
    const Int end = mask.chunk_begin(k_end - 1) + mask.chunk - offset;
    if (begin > rows.begin) rows.begin = begin;
    if (end < rows.end) rows.end = end;
  }
  return rows;
}

}  // namespace fa3
