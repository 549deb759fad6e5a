// SPDX-License-Identifier: Apache-2.0
//
// The micro-kernel, and the two formats it multiplies: 32-bit elements that are floats, or pairs of
// bfloat16 along the sum for dot-product instructions. Next: pack.h.
#pragma once

#include "engine/cpu/kernels/block_job.h"
#include "engine/cpu/simd/vector/convert.h"

namespace fa3::cpu::FA3_ISA {

// Rows of b that are asked for ahead of their use: b streams from the L2 cache, and the hardware's
// own prefetching leaves 1 to 4% of the time waiting for it.
constexpr int64_t kRowsAhead = 8;

template <int C>
FA3_INLINE void prefetch_row(const float* row) {
  constexpr int kCacheLine = 64 / sizeof(float);
  FA3_UNROLL
  for (int i = 0; i < C * kWidth; i += kCacheLine) __builtin_prefetch(row + i, 0, 3);
}

// acc[r][j] += sum_i a[r * a_stride + i * a_step] * b[i][j]: R rows of a, broadcast, against C
// vectors of b.
template <class Format, int R, int C>
FA3_INLINE void multiply(const float* a, int64_t a_stride, int64_t a_step, const float* b,
                         int64_t b_stride, int64_t depth, V (&acc)[R][C]) {
  for (int64_t i = 0; i < depth; ++i) {
    V b_vectors[C];
    FA3_UNROLL
    for (int j = 0; j < C; ++j) b_vectors[j] = load(b + i * b_stride + j * kWidth);
    prefetch_row<C>(b + (i + kRowsAhead) * b_stride);
    FA3_UNROLL
    for (int r = 0; r < R; ++r) {
      const V a_element = broadcast_from(a + r * a_stride + i * a_step);
      FA3_UNROLL
      for (int j = 0; j < C; ++j) {
        acc[r][j] = Format::multiply_add(acc[r][j], a_element, b_vectors[j]);
      }
    }
  }
}

// Every operand widened to float while it is packed.
template <class T>
struct Floats {
  using Element = T;
  static constexpr int kRows = kRowsPerGroup;
  static constexpr int kPanelColumns = kPanel;  // of a packed right factor
  static constexpr int kStep = 1;               // elements of the sum in one 32-bit element
  static constexpr int kSumMultiple = 1;        // sums are padded with zeros to whole multiples
  static constexpr bool kRoundsWeights = false;

  FA3_INLINE V multiply_add(V acc, V a, V b) { return acc + a * b; }

  // 32-bit elements [begin, begin + kWidth) of a row of `dim` elements, zeros past its end.
  FA3_INLINE V load_row(const T* row, int64_t begin, int64_t dim) {
    return load_first(row + begin, dim - begin);
  }

  // kWidth columns of the kStep rows from `row` on, of which `num_rows` exist.
  FA3_INLINE V load_columns(const T* row, int64_t, int64_t num_rows, int64_t column, int64_t dim) {
    return num_rows > 0 ? load_first(row + column, dim - column) : V{};
  }

  // Stores weights as the product with V will read them. Where that rounds them, they are also
  // added to `rounded`.
  template <int C>
  FA3_INLINE void store_p(float* p, const V (&values)[C], V&) {
    FA3_UNROLL
    for (int j = 0; j < C; ++j) store(p + j * kWidth, values[j]);
  }

  // Keeps the bits of kWidth weights from the i-th on that are set in the mask.
  FA3_INLINE void mask_p(float* p, int64_t i, VBits mask) {
    store(p + i, (V)((VBits)load(p + i) & mask));
  }
};

#if defined(FA3_PAIRS)

// Pairs of bfloat16 for vdpbf16ps (x86) and bfdot (Arm), which add two products at a time in float
// and take subnormal numbers for zero.
struct Bf16Pairs {
  using Element = BFloat16;
  static constexpr int kRows = kRowsPerGroup;
  static constexpr int kPanelColumns = kPanel;  // of a packed right factor
  static constexpr int kStep = 2;
  static constexpr int kSumMultiple = 2;
  static constexpr bool kRoundsWeights = true;

  FA3_INLINE V multiply_add(V acc, V a, V b) {
#if defined(FA3_NEON)
    return (V)vbfdotq_f32((float32x4_t)acc, (bfloat16x8_t)a, (bfloat16x8_t)b);
#else
    return (V)_mm512_dpbf16_ps((__m512)acc, (__m512bh)a, (__m512bh)b);
#endif
  }

  // Two vectors of a row rounded to bfloat16, in pairs along the row.
  FA3_INLINE V row_pairs(V first, V second) {
#if defined(FA3_NEON)
    return (V)vcvtq_high_bf16_f32(vcvtq_low_bf16_f32((float32x4_t)first), (float32x4_t)second);
#else
    return (V)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
#endif
  }

  // A vector of two rows, in pairs down the columns.
  FA3_INLINE V column_pairs(V upper, V lower) {
#if defined(FA3_NEON)
    const auto pairs = (uint16x8_t)row_pairs(upper, lower);
    return (V)vzip1q_u16(pairs, vextq_u16(pairs, pairs, kWidth));
#else
    typedef uint16_t VShort __attribute__((vector_size(64)));
    VShort order;
    FA3_UNROLL
    for (int i = 0; i < 2 * kWidth; ++i) order[i] = static_cast<uint16_t>(i / 2 + i % 2 * kWidth);
    return (V)_mm512_permutexvar_epi16((__m512i)order, (__m512i)row_pairs(upper, lower));
#endif
  }

  FA3_INLINE V load_row(const BFloat16* row, int64_t begin, int64_t dim) {
    const int64_t first = begin * 2;
    BFloat16 pairs[2 * kWidth] = {};
    V v;
    if (dim - first >= 2 * kWidth) {
      __builtin_memcpy(&v, row + first, sizeof(v));
      return v;
    }
    for (int64_t i = 0; i < dim - first; ++i) pairs[i] = row[first + i];
    __builtin_memcpy(&v, pairs, sizeof(v));
    return v;
  }

  FA3_INLINE VBits load_column_bits(const BFloat16* row, int64_t column, int64_t dim) {
    if (dim - column >= kWidth) return load_bits16(row + column);
    BFloat16 elements[kWidth] = {};
    for (int64_t i = 0; i < dim - column; ++i) elements[i] = row[column + i];
    return load_bits16(elements);
  }

  FA3_INLINE V load_columns(const BFloat16* row, int64_t row_stride, int64_t num_rows,
                            int64_t column, int64_t dim) {
    const VBits even = num_rows > 0 ? load_column_bits(row, column, dim) : VBits{};
    const VBits odd = num_rows > 1 ? load_column_bits(row + row_stride, column, dim) : VBits{};
    return (V)(even | odd << 16);
  }

  template <int C>
  FA3_INLINE void store_p(float* p, const V (&values)[C], V& rounded) {
    V ones = (V)(VBits{} + 0x3f803f80u);
#if defined(FA3_NEON)
    asm("" : "+w"(ones));  // GCC 12 takes a constant of bfloat16 for one of float16
#endif
    FA3_UNROLL
    for (int j = 0; j < C; j += 2) {
      const V pairs = row_pairs(values[j], values[j + 1]);
      store(p + j / 2 * kWidth, pairs);
      rounded = multiply_add(rounded, pairs, ones);
    }
  }

  FA3_INLINE void mask_p(float* p, int64_t i, VBits mask) {
    char* const weights = reinterpret_cast<char*>(p) + 2 * i;
    VHalf half;
    __builtin_memcpy(&half, weights, sizeof(half));
    half &= __builtin_convertvector(mask, VHalf);
    __builtin_memcpy(weights, &half, sizeof(half));
  }
};

#endif

}  // namespace fa3::cpu::FA3_ISA
