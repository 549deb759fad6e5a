// SPDX-License-Identifier: Apache-2.0
//
// Which keys a query sees: the single definition for every engine, host and device.
// Bottom-right aligned: the last query is level with the last key. Next: block_range.h.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace fa3 {

// A half-open range of keys; empty when end <= begin.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;

  FA3_HD constexpr bool empty() const { return end <= begin; }
  FA3_HD constexpr bool contains(int64_t key) const { return key >= begin && key < end; }
};

// Inclusive reach to either side of the diagonal; kUnbounded on a side that is not masked.
// Causal is right == 0.
struct MaskRule {
  static constexpr int64_t kUnbounded = -1;
  int64_t left = kUnbounded;
  int64_t right = kUnbounded;

  FA3_HD constexpr bool hides_nothing() const { return left == kUnbounded && right == kUnbounded; }

  // The keys that query q_row of a sequence sees.
  FA3_HD constexpr KeyRange keys_of(int64_t q_row, int64_t seqlen_q, int64_t seqlen_k) const {
    const int64_t diagonal = q_row + seqlen_k - seqlen_q;
    KeyRange range{0, seqlen_k};
    if (left != kUnbounded && diagonal - left > range.begin) range.begin = diagonal - left;
    if (right != kUnbounded && diagonal + right + 1 < range.end) range.end = diagonal + right + 1;
    return range;
  }

  FA3_HD constexpr bool visible(int64_t q_row, int64_t key, int64_t seqlen_q,
                                int64_t seqlen_k) const {
    return keys_of(q_row, seqlen_q, seqlen_k).contains(key);
  }
};

}  // namespace fa3
