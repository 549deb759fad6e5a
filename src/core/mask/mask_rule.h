// SPDX-License-Identifier: Apache-2.0
//
// Which keys a query sees: the one definition, for every engine, on host and device.
// Bottom-right aligned: the last query is level with the last key. Both ends of a row's keys grow
// with the row. Next: block_range.h.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace fa3 {

// A half-open range of keys; empty when end <= begin.
template <class Int>
struct KeyRangeOf {
  Int begin = 0;
  Int end = 0;

  FA3_HD constexpr bool empty() const { return end <= begin; }
  FA3_HD constexpr bool contains(Int key) const { return key >= begin && key < end; }
};

// Inclusive reach to either side of the diagonal; kUnbounded on a side that is not masked. A
// negative reach ends beside the diagonal: -1 hides the diagonal too. Where both sides are bounded,
// left + right >= 0. Causal is right == 0. Chunks cut the keys into blocks of `chunk`, counted from
// the first: a query sees none but those of the run in which its diagonal is (before the first key
// there is none). Int: int64_t for callers' lengths, int where a kernel has bounded them.
template <class Int>
struct MaskRuleOf {
  static constexpr Int kUnbounded = INT32_MIN;  // no reach is as far; in each type the same
  static constexpr Int kNoChunks = 0;
  Int left = kUnbounded;
  Int right = kUnbounded;
  Int chunk = kNoChunks;

  // Whether a side ends beside the diagonal: then any row may see no key.
  FA3_HD constexpr bool is_beside_diagonal() const {
    return (left < 0 && left != kUnbounded) || (right < 0 && right != kUnbounded);
  }

  FA3_HD constexpr bool hides_nothing() const {
    return left == kUnbounded && right == kUnbounded && chunk == kNoChunks;
  }

  // Where the chunk of a key, or of a diagonal, begins.
  FA3_HD constexpr Int chunk_begin(Int key) const {
    const Int rest = key % chunk;
    return key - (rest < 0 ? rest + chunk : rest);
  }

  // The keys that query q_row of a sequence sees.
  FA3_HD constexpr KeyRangeOf<Int> keys_of(Int q_row, Int seqlen_q, Int seqlen_k) const {
    const Int diagonal = q_row + seqlen_k - seqlen_q;
    KeyRangeOf<Int> range{0, seqlen_k};
    if (left != kUnbounded && diagonal - left > range.begin) range.begin = diagonal - left;
    if (right != kUnbounded && diagonal + right + 1 < range.end) range.end = diagonal + right + 1;
    if (chunk != kNoChunks) {
      const Int begin = chunk_begin(diagonal);
      if (begin > range.begin) range.begin = begin;
      if (begin + chunk < range.end) range.end = begin + chunk;
    }
    return range;
  }

  FA3_HD constexpr bool visible(Int q_row, Int key, Int seqlen_q, Int seqlen_k) const {
    return keys_of(q_row, seqlen_q, seqlen_k).contains(key);
  }
};

using KeyRange = KeyRangeOf<int64_t>;
using MaskRule = MaskRuleOf<int64_t>;

}  // namespace fa3
