// SPDX-License-Identifier: Apache-2.0
//
// How many pairs of a query and a key a mask leaves visible: what a call's work is counted by.
#pragma once

#include <algorithm>

#include "core/mask/mask_rule.h"

namespace fa3 {

// The sum of clamp(row + shift, 0, seqlen_k) over the query rows: keys before an edge of the mask.
constexpr int64_t keys_before_edge(int64_t shift, int64_t seqlen_q, int64_t seqlen_k) {
  const int64_t first = std::clamp<int64_t>(-shift, 0, seqlen_q);  // rows before see none
  const int64_t full =
      std::clamp<int64_t>(seqlen_k - shift, first, seqlen_q);  // rows from here all
  const int64_t partly = full - first;
  return partly * (first + shift + full - 1 + shift) / 2 + (seqlen_q - full) * seqlen_k;
}

constexpr int64_t visible_pairs(const MaskRule& mask, int64_t seqlen_q, int64_t seqlen_k) {
  if (mask.chunk != MaskRule::kNoChunks) {
    // Chunks of keys are level with their queries, of which the first chunk's may be fewer.
    const MaskRule within{mask.left, mask.right};
    const int64_t first = std::max<int64_t>(0, seqlen_k - seqlen_q);
    const int64_t begin = mask.chunk_begin(first);
    const int64_t end = std::min(begin + mask.chunk, seqlen_k);
    const int64_t others = (seqlen_k - end) / mask.chunk, last = (seqlen_k - end) % mask.chunk;
    return visible_pairs(within, end - first, end - begin) +
           others * visible_pairs(within, mask.chunk, mask.chunk) +
           visible_pairs(within, last, last);
  }
  const int64_t level = seqlen_k - seqlen_q;  // bottom-right: where the first row's diagonal is
  int64_t pairs = seqlen_q * seqlen_k;
  if (mask.right != MaskRule::kUnbounded) {
    pairs = keys_before_edge(level + mask.right + 1, seqlen_q, seqlen_k);
  }
  if (mask.left != MaskRule::kUnbounded) {
    pairs -= keys_before_edge(level - mask.left, seqlen_q, seqlen_k);
  }
  return pairs;
}

}  // namespace fa3
