// SPDX-License-Identifier: Apache-2.0
//
// What a driver hands to simd/vector/block_mask.h of a block mask (core/mask/block_mask.h): plain
// data, as in block_job.h.
#pragma once

#include "core/mask/block_mask.h"

namespace fa3::cpu {

// A query row of one head.
struct MaskRow {
  const int32_t* blocks = nullptr;  // the map's entries by key block
  const uint32_t* bits = nullptr;   // the row's in the first block of bits
};

inline MaskRow mask_row(const BlockMask& mask, int64_t sequence, int64_t head, int64_t query) {
  return {mask.row_of(sequence, head, query / kMaskBlock), mask.bits_of(query)};
}

}  // namespace fa3::cpu
