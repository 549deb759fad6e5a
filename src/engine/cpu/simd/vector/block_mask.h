// SPDX-License-Identifier: Apache-2.0
//
// Which keys a block mask shows to a row group, and to a row. Keys count within the sequence; no
// vector or panel of them crosses the end of a block.
#pragma once

#include "engine/cpu/kernels/block_job.h"
#include "engine/cpu/simd/vector/vector.h"

namespace fa3::cpu::FA3_ISA {

enum class Shown { kNothing, kSome, kAll };

// What the key block that has `key` shows to all of the rows.
FA3_INLINE Shown shown_to(const MaskRow* rows, int64_t num_rows, int64_t key) {
  bool all = true, none = true;
  for (int64_t r = 0; r < num_rows; ++r) {
    const int32_t entry = rows[r].blocks[key / kMaskBlock];
    all = all && entry == kFullBlock;
    none = none && entry == kHiddenBlock;
  }
  return none ? Shown::kNothing : all ? Shown::kAll : Shown::kSome;
}

// The row's bits of the 32 keys from a multiple of 32 on.
FA3_INLINE uint32_t mask_word(const MaskRow& row, int64_t key) {
  const int32_t entry = row.blocks[key / kMaskBlock];
  if (entry == kHiddenBlock || entry == kFullBlock) return entry == kFullBlock ? ~0u : 0u;
  return row.bits[(int64_t{entry} - 1) * kMaskBlockWords + key % kMaskBlock / 32];
}

// All ones in the lanes of keys [key, key + kWidth) that the row sees, else zero.
FA3_INLINE VInt shown_keys(const MaskRow& row, int64_t key) {
  const VInt word = VInt{} + static_cast<int32_t>(mask_word(row, key) >> (key % 32));
  return (word & (VInt{} + 1) << lane_numbers()) != 0;
}

}  // namespace fa3::cpu::FA3_ISA
