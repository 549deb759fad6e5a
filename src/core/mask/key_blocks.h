// SPDX-License-Identifier: Apache-2.0
//
// A block range counted in blocks of keys: what a tiled engine walks over.
#pragma once

#include "core/mask/block_range.h"

namespace fa3 {

// Blocks [first, end) hold every key that some row sees. Of these, the blocks below masked_below or
// from masked_from up hold a key that some row must not see; the blocks between need no mask.
struct KeyBlocks {
  int first = 0;
  int end = 0;
  int masked_below = 0;
  int masked_from = 0;
};

FA3_HD constexpr KeyBlocks key_blocks(const BlockRangeOf<int>& range, int block_keys) {
  // Ends of ranges that hold nothing may be negative. Unsigned division takes half the
  // instructions.
  const auto blocks_before = [&](int key) {
    return int(unsigned(key > 0 ? key : 0) / unsigned(block_keys));
  };
  const auto blocks_until = [&](int key) { return blocks_before(key + block_keys - 1); };
  return {.first = blocks_before(range.visible.begin),
          .end = blocks_until(range.visible.end),
          .masked_below = blocks_until(range.free.begin),
          .masked_from = blocks_before(range.free.end)};
}

}  // namespace fa3
