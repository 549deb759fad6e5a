// SPDX-License-Identifier: Apache-2.0
//
// The code behind TileOps, included by one file per instruction set, which sets the vector size.
// Everything has internal linkage and no standard template is used: a copy compiled for AVX-512 can
// never replace one that baseline code calls.
#pragma once

#include "engine/cpu/tile_ops.h"

namespace fa3::cpu {
namespace {

template <int kBytes>
struct TileKernels {
  static constexpr int64_t kLanes = kBytes / 4;
  typedef float Vector __attribute__((vector_size(kBytes)));
  typedef int32_t Ints __attribute__((vector_size(kBytes)));

  // 6 x 4 accumulators of 32 AVX-512 registers, 6 x 2 of the 16 that the others have.
  static constexpr int kMaxRows = 6;
  static constexpr int kMaxVectors = kLanes == 16 ? 4 : 2;

  static Vector load(const float* from) {
    Vector value;
    __builtin_memcpy(&value, from, kBytes);
    return value;
  }
  static void store(float* to, Vector value) { __builtin_memcpy(to, &value, kBytes); }

  template <int kRows, int kVectors>
  static void multiply_add_block(int64_t k, Factor a, TileRows<const float> b, TileRows<float> c) {
    Vector sums[kRows][kVectors];
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) sums[r][v] = load(c.data + r * c.row_stride + v * kLanes);
    }
    for (int64_t i = 0; i < k; ++i) {
      const float* b_row = b.data + i * b.row_stride;
      const float* a_column = a.data + i * a.column_stride;
      for (int r = 0; r < kRows; ++r) {
        const float weight = a_column[r * a.row_stride];
        for (int v = 0; v < kVectors; ++v) sums[r][v] += weight * load(b_row + v * kLanes);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) store(c.data + r * c.row_stride + v * kLanes, sums[r][v]);
    }
  }

  // Dispatches the leftover rows, then the leftover vectors, to blocks of compile-time size.
  template <int kVectors, int kRows = kMaxRows>
  static void multiply_add_rows(int64_t rows, int64_t k, Factor a, TileRows<const float> b,
                                TileRows<float> c) {
    if (rows == kRows) return multiply_add_block<kRows, kVectors>(k, a, b, c);
    if constexpr (kRows > 1) multiply_add_rows<kVectors, kRows - 1>(rows, k, a, b, c);
  }

  template <int kVectors = kMaxVectors>
  static void multiply_add_columns(int64_t vectors, int64_t rows, int64_t k, Factor a,
                                   TileRows<const float> b, TileRows<float> c) {
    if (vectors == kVectors) return multiply_add_rows<kVectors>(rows, k, a, b, c);
    if constexpr (kVectors > 1) multiply_add_columns<kVectors - 1>(vectors, rows, k, a, b, c);
  }

  static void multiply_add(int64_t m, int64_t n, int64_t k, Factor a, TileRows<const float> b,
                           TileRows<float> c) {
    for (int64_t column = 0; column < n; column += kMaxVectors * kLanes) {
      const int64_t left = (n - column) / kLanes;
      const int64_t vectors = left < kMaxVectors ? left : kMaxVectors;
      for (int64_t row = 0; row < m; row += kMaxRows) {
        const int64_t rows = m - row < kMaxRows ? m - row : kMaxRows;
        multiply_add_columns(
            vectors, rows, k, {a.data + row * a.row_stride, a.row_stride, a.column_stride},
            {b.data + column, b.row_stride}, {c.data + row * c.row_stride + column, c.row_stride});
      }
    }
  }

  // 2^x = 2^n 2^f with n = round(x), |f| <= 1/2; Taylor terms ln(2)^i / i! up to i = 7 leave a
  // relative error of (ln(2)/2)^8 / 8! = 5e-9, below float rounding.
  static Vector exp2_vector(Vector x) {
    constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: adding it drops the fraction
    constexpr int32_t kRoundToIntegerBits = 0x4b400000;
    constexpr int32_t kExponentBias = 127;
    constexpr int32_t kMantissaBits = 23;
    constexpr float kLargest = 128.0f;    // 2^128 is infinite in float
    constexpr float kSmallest = -126.0f;  // below: no normal float, taken as 0
    const Vector clamped = x > kLargest ? Vector{} + kLargest : x;
    const Vector shifted = clamped + kRoundToInteger;
    const Vector f = clamped - (shifted - kRoundToInteger);
    constexpr float kTerms[] = {
        1.5252733804e-5f, 1.5403530393e-4f, 1.3333558146e-3f, 9.6181291076e-3f,
        5.5504108665e-2f, 2.4022650696e-1f, 6.9314718056e-1f, 1.0f};
    Vector series = Vector{} + kTerms[0];
    for (int i = 1; i < 8; ++i) series = series * f + kTerms[i];
    // n is in the low bits of `shifted`. Two factors, since 2^128 has no exponent field.
    const Ints n = (Ints)shifted - kRoundToIntegerBits;
    const Vector half_power = (Vector)((n - 1 + kExponentBias) << kMantissaBits);
    const Vector result = series * half_power * 2.0f;
    return x < kSmallest ? Vector{} : result;
  }

  static void exp2(float* x, int64_t count) {
    for (int64_t i = 0; i < count; i += kLanes) store(x + i, exp2_vector(load(x + i)));
  }
};

}  // namespace
}  // namespace fa3::cpu
