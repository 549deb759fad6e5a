// SPDX-License-Identifier: Apache-2.0
// What a block mask (core/mask/block_mask.h) says of a block, whatever the caller's arrays hold:
// nothing has validated them, since a call waits for nothing that the GPU does. Next: bit_mask.cuh.
#pragma once

#include "core/mask/block_mask.h"

namespace fa3::cuda {

struct MapEntry {
  bool full;
  const uint32_t* bits;  // null: none

  FA3_HD constexpr bool seen() const { return full || bits != nullptr; }
};

// `row`: of the map (BlockMask::row_of). Blocks beyond the map are hidden, and so are those whose
// entry names no bits.
FA3_HD constexpr MapEntry map_entry(const BlockMask& mask, const int32_t* row, int key_block) {
  const int32_t entry = key_block < mask.key_blocks ? row[key_block] : kHiddenBlock;
  const bool named = entry > 0 && entry <= mask.num_bits;
  return {entry == kFullBlock,
          named ? mask.bits + (int64_t{entry} - 1) * kMaskBlockWords : nullptr};
}

FA3_HD constexpr MapEntry map_entry(const BlockMask& mask, int batch, int head, int query_block,
                                    int key_block) {
  if (query_block >= mask.query_blocks) return {};
  return map_entry(mask, mask.row_of(batch, head, query_block), key_block);
}

}  // namespace fa3::cuda
