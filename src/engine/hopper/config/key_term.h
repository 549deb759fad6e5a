// SPDX-License-Identifier: Apache-2.0
// What a score function adds for a key, whatever the query (FA3_SCORE_KEY_TERM), as an
// operand: the tensor cores add it to a block's scores as columns of K, beside which Q has ones. A
// term is the sum of three numbers of bf16, which have 8 of its 24 bits each, so it has three
// columns; the other 13 of a product are zeros. Rows are 16 bytes that lie one behind the other,
// without a swizzle. Plain constexpr: tested on the host. Next: producer/write_key_terms.cuh.
#pragma once

#include <cstdint>

#include "core/macros.h"
#include "engine/hopper/config/sm90.h"

namespace fa3::hopper {

inline constexpr int kKeyTermStages = 4;
inline constexpr int kKeyTermRowBytes = 16;  // of 8 columns; the next 8 are zeros
inline constexpr int kCoreMatrixBytes = 8 * kKeyTermRowBytes;

FA3_HD constexpr int key_term_operand_bytes(int keys) {
  return keys * kKeyTermRowBytes;
}

// All stages, the zeros beside them, and the ones.
FA3_HD constexpr int key_term_bytes(int keys) {
  return (kKeyTermStages + 1) * key_term_operand_bytes(keys) + kCoreMatrixBytes;
}

// Two words of a row, whose others are zeros.
struct KeyTermWords {
  uint32_t first, second;
};
inline constexpr uint32_t kBf16One = 0x3f80;
inline constexpr KeyTermWords kKeyTermOnes{kBf16One << 16 | kBf16One, kBf16One};

FA3_HD inline float float_of_upper(uint32_t bits) {
  return __builtin_bit_cast(float, bits & 0xffff0000);
}

// Terms beyond are these: exponents of a row of nothing but larger scores would be lost in
// roundings.
inline constexpr float kLargestTerm = 0x1p26f;

FA3_HD inline float bounded_term(float term) {
  const float size = term < 0.0f ? -term : term;
  if (!(size > kLargestTerm) || size - size != 0.0f) return term;  // or infinite
  return term < 0.0f ? -kLargestTerm : kLargestTerm;
}

// Infinity has no rest, and NaN keeps a bit of its own.
FA3_HD inline KeyTermWords key_term_words(float term) {
  const uint32_t bits = __builtin_bit_cast(uint32_t, term);
  const float rest = term - float_of_upper(bits);
  if (!(rest - rest == 0.0f)) return {bits >> 16 | (term != term ? 0x40u : 0u), 0};
  const uint32_t middle = __builtin_bit_cast(uint32_t, rest);
  const uint32_t last = __builtin_bit_cast(uint32_t, rest - float_of_upper(middle));
  return {bits >> 16 | (middle & 0xffff0000), last >> 16};
}

// A matrix descriptor (tile/layout.h) without a swizzle: eight rows from `address`, the next eight
// `stride` bytes behind them, and the columns from 8 on at `zeros`, likewise.
FA3_HD constexpr uint64_t plain_descriptor(uint32_t address, uint32_t zeros, uint32_t stride) {
  const uint32_t low = address >> 4 | ((zeros - address) >> 4) << 16;
  return uint64_t{stride >> 4} << 32 | low;
}
FA3_HD constexpr uint64_t key_term_descriptor(uint32_t terms, uint32_t zeros) {
  return plain_descriptor(terms, zeros, kCoreMatrixBytes);
}
// All rows are the same eight.
FA3_HD constexpr uint64_t ones_descriptor(uint32_t ones, uint32_t zeros) {
  return plain_descriptor(ones, zeros, 0);
}

}  // namespace fa3::hopper
