// SPDX-License-Identifier: Apache-2.0
//
// What the backward pass does to tiles of floats in memory: see TileFactor and kernels.h.
#pragma once

#include "engine/cpu/block_job.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/simd/exp2.h"

namespace fa3::cpu::FA3_ISA {

template <int R, int C>
FA3_INLINE void add_product_block(int64_t depth, TileFactor a, const float* b, int64_t b_stride,
                                  float* c, int64_t c_stride) {
  V acc[R][C];
  FA3_UNROLL
  for (int r = 0; r < R; ++r) {
    FA3_UNROLL
    for (int j = 0; j < C; ++j) acc[r][j] = load(c + r * c_stride + j * kWidth);
  }
  for (int64_t i = 0; i < depth; ++i) {
    V b_vectors[C];
    FA3_UNROLL
    for (int j = 0; j < C; ++j) b_vectors[j] = load(b + i * b_stride + j * kWidth);
    FA3_UNROLL
    for (int r = 0; r < R; ++r) {
      const V weight = broadcast_from(a.data + r * a.row_stride + i * a.column_stride);
      FA3_UNROLL
      for (int j = 0; j < C; ++j) acc[r][j] += weight * b_vectors[j];
    }
  }
  FA3_UNROLL
  for (int r = 0; r < R; ++r) {
    FA3_UNROLL
    for (int j = 0; j < C; ++j) store(c + r * c_stride + j * kWidth, acc[r][j]);
  }
}

// Sends leftover rows to blocks of fewer rows.
template <int C, int R = kRowsPerGroup>
FA3_INLINE void add_product_rows(int64_t rows, int64_t depth, TileFactor a, const float* b,
                                 int64_t b_stride, float* c, int64_t c_stride) {
  if (rows >= R) return add_product_block<R, C>(depth, a, b, b_stride, c, c_stride);
  if constexpr (R > 1) add_product_rows<C, R - 1>(rows, depth, a, b, b_stride, c, c_stride);
}

static void add_product(int64_t m, int64_t n, int64_t depth, TileFactor a, const float* b,
                        int64_t b_stride, float* c, int64_t c_stride) {
  for (int64_t column = 0; column < n;) {
    const bool whole_panel = n - column >= kPanel;
    for (int64_t row = 0; row < m; row += kRowsPerGroup) {
      const TileFactor a_rows{a.data + row * a.row_stride, a.row_stride, a.column_stride};
      float* const c_block = c + row * c_stride + column;
      if (whole_panel) {
        add_product_rows<kPanelVectors>(m - row, depth, a_rows, b + column, b_stride, c_block,
                                        c_stride);
      } else {
        add_product_rows<1>(m - row, depth, a_rows, b + column, b_stride, c_block, c_stride);
      }
    }
    column += whole_panel ? kPanel : kWidth;
  }
}

static void exp2_in_place(float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += kWidth) store(x + i, exp2(load(x + i)));
}

}  // namespace fa3::cpu::FA3_ISA
