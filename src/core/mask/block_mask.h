// SPDX-License-Identifier: Apache-2.0
//
// Masks as data: a map says of each block of kMaskBlock queries and kMaskBlock keys whether it is
// hidden, seen in full, or seen in part; the last have a bit for each pair. Queries and keys count
// within their sequence, as in mask_rule.h; a pair is seen where both the map and the rule show it.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace fa3 {

// FA3_MASK_BLOCK of fa3.h, which api/describe holds it to: kernels include no interface.
inline constexpr int kMaskBlock = 128;
inline constexpr int kMaskRowWords =
    kMaskBlock / 32;  // key j of a row is bit j % 32 of word j / 32
inline constexpr int kMaskBlockWords = kMaskBlock * kMaskRowWords;

// Entries of the map. Any other is one more than the number of the block's bits.
inline constexpr int32_t kHiddenBlock = 0, kFullBlock = -1;

struct BlockMask {
  bool on = false;                  // also known to questions, which bring no data
  const int32_t* blocks = nullptr;  // (batch, heads, query blocks, key blocks)
  int64_t batch_stride = 0;         // 0 where all share one map; likewise for heads
  int64_t head_stride = 0;
  int64_t row_stride = 0;
  int64_t query_blocks = 0, key_blocks = 0;  // of the map: what lies beyond is hidden
  int64_t batches = 1, heads = 1;            // that have maps of their own
  const uint32_t* bits = nullptr;            // (num_bits, kMaskBlock, kMaskRowWords)
  int64_t num_bits = 0;

  // The map's row of a query, which has an entry for each key block.
  FA3_HD constexpr const int32_t* row_of(int64_t batch, int64_t head, int64_t query_block) const {
    return blocks + batch * batch_stride + head * head_stride + query_block * row_stride;
  }
  // The bits of a query's row in the first block of bits; those of entry n lie
  // (n - 1) * kMaskBlockWords further on.
  FA3_HD constexpr const uint32_t* bits_of(int64_t query) const {
    return bits + query % kMaskBlock * kMaskRowWords;
  }
  // For maps whose entries are validated.
  FA3_HD constexpr bool visible(int64_t batch, int64_t head, int64_t query, int64_t key) const {
    const int32_t entry = row_of(batch, head, query / kMaskBlock)[key / kMaskBlock];
    if (entry == kHiddenBlock || entry == kFullBlock) return entry == kFullBlock;
    const uint32_t* words = bits_of(query) + (int64_t{entry} - 1) * kMaskBlockWords;
    return words[key % kMaskBlock / 32] >> (key % 32) & 1;
  }
};

}  // namespace fa3
