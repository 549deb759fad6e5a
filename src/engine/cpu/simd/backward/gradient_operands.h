// SPDX-License-Identifier: Apache-2.0
//
// How the backward's operands lie in a tile's buffers, for a product in either format of
// multiply.h. A left factor has rows, whose elements are broadcast; a right factor is read in
// vectors of columns. In floats one copy of a row is both. Pairs run along the sum, so an operand
// of two products has a copy for each:
//
//   q, d_o    (queries, head dim) as left factors of scores, then (queries, head dim), in pairs of
//             rows, as right factors of gradients
//   kt, vt    panels of (head dim, keys), right factors of scores
//   k         (keys, head dim), in pairs of rows, the right factor of dQ
//   p         (queries, keys), in pairs of rows
//   ds        the same, then (queries, keys) in pairs of columns, the left factor of dQ
//
// Next: gradient_products.h.
#pragma once

#include "engine/cpu/kernels/kernels.h"
#include "engine/cpu/simd/vector/dropout.h"

namespace fa3::cpu::FA3_ISA {

template <class Format>
constexpr GradientShape kGradientShape =
    Format::kStep == 1 ? kFloatGradientShape : kPairGradientShape;

// 32-bit elements of a row of P and dS, by queries or pairs of them.
template <class Format>
constexpr int64_t kScoreStride = kGradientShape<Format>.keys + kScorePadding;

// Pairs: where dS by rows of keys begins, and 32-bit elements of such a row.
constexpr GradientShape kPairs = kPairGradientShape;
constexpr int64_t kDsRows = kPairs.queries / 2 * (kPairs.keys + kScorePadding);
constexpr int64_t kDsRow = kPairs.keys / 2;
static_assert(kDsRows + kPairs.queries * kDsRow <= kPairs.queries * (kPairs.keys + kScorePadding));

// 32-bit elements of a row of a left factor of scores.
template <class Format>
FA3_INLINE int64_t left_stride(int64_t dim) {
  return (depth_of<Format>(dim) + 15) / 16 * 16;
}

template <class Format>
FA3_INLINE int64_t whole_groups(int64_t rows) {
  return (rows + Format::kRows - 1) / Format::kRows * Format::kRows;
}

// Where the second half of a buffer of pairs of queries begins.
FA3_INLINE int64_t half_of_queries(const GradientShape& shape, int64_t dim) {
  return shape.queries * ((dim + kOperandColumns - 1) / kOperandColumns * kOperandColumns) / 2;
}

template <class Format>
FA3_INLINE float* right_of_queries(float* queries, int64_t dim) {
  return Format::kStep == 1 ? queries : queries + half_of_queries(kPairs, dim);
}

// A left factor: element (r, i) is data[r * row + i * step].
struct LeftFactor {
  const float* data;
  int64_t row, step;
};

// dS from a query and a key, or pair of keys, on.
template <class Format>
FA3_INLINE LeftFactor rows_of_ds(const GradientTile& tile, int64_t row, int64_t key) {
  const float* const data = Format::kStep == 1 ? tile.ds : tile.ds + kDsRows;
  const int64_t stride = Format::kStep == 1 ? kScoreStride<Format> : kDsRow;
  return {data + row * stride + key, stride, 1};
}

// P or dS, transposed: from a key and a query, or pair of queries, on.
template <class Format>
FA3_INLINE LeftFactor columns_of(const float* scores, int64_t key, int64_t row) {
  return {scores + row * kScoreStride<Format> + key, 1, kScoreStride<Format>};
}

// Stores P and dS of two rows and two vectors of keys as they will be multiplied.
template <class Format>
FA3_INLINE void store_square(const GradientTile& tile, int64_t row, int64_t key, const V (&p)[2][2],
                             const V (&ds)[2][2]) {
  const int64_t at = row / Format::kStep * kScoreStride<Format> + key;
  if constexpr (Format::kStep == 1) {
    FA3_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int64_t to = at + i / 2 * kScoreStride<Format> + i % 2 * kWidth;
      store(tile.p + to, p[i / 2][i % 2]);
      store(tile.ds + to, ds[i / 2][i % 2]);
    }
  } else {
    float* const rows = tile.ds + kDsRows + row * kDsRow + key / 2;
    FA3_UNROLL
    for (int i = 0; i < 2; ++i) {
      store(tile.p + at + i * kWidth, Format::column_pairs(p[0][i], p[1][i]));
      store(tile.ds + at + i * kWidth, Format::column_pairs(ds[0][i], ds[1][i]));
      store(rows + i * kDsRow, Format::row_pairs(ds[i][0], ds[i][1]));
    }
  }
}

// Rows as a left factor of scores, with zeros up to a whole row group.
template <class Format>
static void pack_left(OperandRows rows, float* to) {
  using T = typename Format::Element;
  const int64_t stride = left_stride<Format>(rows.dim);
  for (int64_t r = 0; r < whole_groups<Format>(rows.count); ++r) {
    const T* row = static_cast<const T*>(rows.data) + r * rows.row_stride;
    for (int64_t i = 0; i < stride; i += kWidth) {
      store(to + r * stride + i, r < rows.count ? Format::load_row(row, i, rows.dim) : V{});
    }
  }
}

// Rows as a right factor that is added up over them, with zeros up to a whole row group.
template <class Format>
static void pack_right(OperandRows rows, float* to) {
  using T = typename Format::Element;
  const int64_t columns = (rows.dim + 15) / 16 * 16;
  for (int64_t r = 0; r < whole_groups<Format>(rows.count); r += Format::kStep) {
    const T* row = static_cast<const T*>(rows.data) + r * rows.row_stride;
    for (int64_t c = 0; c < columns; c += kWidth) {
      store(to + r / Format::kStep * columns + c,
            Format::load_columns(row, rows.row_stride, rows.count - r, c, rows.dim));
    }
  }
}

template <class Format>
static void pack_panels(OperandRows rows, float* to) {
  pack_keys<Format>(static_cast<const typename Format::Element*>(rows.data), rows.row_stride,
                    rows.count, rows.dim, to);
}

template <class Format>
static void load_keys(const GradientTile& tile, OperandRows k, OperandRows v) {
  pack_right<Format>(k, tile.k);
  pack_panels<Format>(k, tile.kt);
  pack_panels<Format>(v, tile.vt);
}

template <class Format>
static void load_queries(OperandRows rows, float* to) {
  pack_left<Format>(rows, to);
  if (Format::kStep > 1) pack_right<Format>(rows, right_of_queries<Format>(to, rows.dim));
}

template <class Format>
static void load_q(const GradientTile& tile, OperandRows q) {
  load_queries<Format>(q, tile.q);
}

template <class Format>
static void load_d_o(const GradientTile& tile, OperandRows d_o) {
  load_queries<Format>(d_o, tile.d_o);
}

}  // namespace fa3::cpu::FA3_ISA
