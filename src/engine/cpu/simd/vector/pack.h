// SPDX-License-Identifier: Apache-2.0
//
// Copies operands into the order in which the micro-kernel reads them, widened, with zeros where a
// tensor ends: memory outside a sequence is never loaded, so nothing in it can matter.
// Next: softmax.h.
#pragma once

#include "engine/cpu/simd/vector/key_rows.h"
#include "engine/cpu/simd/vector/multiply.h"

namespace fa3::cpu::FA3_ISA {

// Floats of a packed query row; the same for every instruction set (tile_shape.h).
FA3_INLINE int64_t packed_q_stride(const BlockJob& job) {
  return (job.head_dim + 15) / 16 * 16;
}

// The length of a sum with its padding.
template <class Format>
FA3_INLINE int64_t padded_sum(int64_t length) {
  return (length + Format::kSumMultiple - 1) / Format::kSumMultiple * Format::kSumMultiple;
}

// 32-bit elements along the sum over the head dim.
template <class Format>
FA3_INLINE int64_t depth_of(int64_t dim) {
  return padded_sum<Format>(dim) / Format::kStep;
}

template <class T>
FA3_INLINE const T* query_row(const BlockJob& job, int64_t r) {
  const int64_t position = (job.first_row + r) / job.group;
  const int64_t head = (job.first_row + r) % job.group;
  return static_cast<const T*>(job.q) + position * job.q_row_stride + head * job.q_head_stride;
}

// Query rows to (row, depth); the padding rows are zero.
template <class Format>
static void pack_queries(const BlockJob& job) {
  using T = typename Format::Element;
  const int64_t stride = packed_q_stride(job);
  const int64_t depth = depth_of<Format>(job.head_dim);
  for (int64_t r = 0; r < job.padded_rows; ++r) {
    const T* from = query_row<T>(job, r);
    float* to = job.buffers.q + r * stride;
    for (int64_t i = 0; i < depth; i += kWidth) {
      store(to + i, r < job.num_rows ? Format::load_row(from, i, job.head_dim) : V{});
    }
  }
}

// `num_keys` key rows to panels of (depth, keys).
template <class Format>
static void pack_keys(const typename Format::Element* keys, int64_t row_stride, int64_t num_keys,
                      int64_t dim, float* to) {
  constexpr int64_t kColumns = Format::kPanelColumns;
  const int64_t depth = depth_of<Format>(dim);
  for (int64_t key = 0; key < num_keys; key += kWidth) {
    float* column = to + key / kColumns * (depth * kColumns) + key % kColumns;
    for (int64_t i = 0; i < depth; i += kWidth) {
      V rows[kWidth];
      FA3_UNROLL
      for (int r = 0; r < kWidth; ++r) {
        rows[r] =
            key + r < num_keys ? Format::load_row(keys + (key + r) * row_stride, i, dim) : V{};
      }
      transpose(rows);
      const int64_t count = depth - i < kWidth ? depth - i : kWidth;
      for (int64_t r = 0; r < count; ++r) store(column + (i + r) * kColumns, rows[r]);
    }
  }
  // The rest of the last scores: the product reads it, the mask discards it.
  for (int64_t key = (num_keys + kWidth - 1) / kWidth * kWidth; key % kPanel != 0; key += kWidth) {
    float* column = to + key / kColumns * (depth * kColumns) + key % kColumns;
    for (int64_t i = 0; i < depth; ++i) store(column + i * kColumns, V{});
  }
}

// `num_keys` value rows to panels of (keys / kStep, columns); panels are `block_k` keys long.
template <class Format>
static void pack_values(const typename Format::Element* values, int64_t row_stride,
                        int64_t num_keys, int64_t block_k, int64_t dim, float* to) {
  constexpr int64_t kColumns = Format::kPanelColumns;
  const int64_t panel_floats = block_k / Format::kStep * kColumns;
  for (int64_t key = 0; key < padded_sum<Format>(num_keys); key += Format::kStep) {
    const auto* row = values + key * row_stride;
    for (int64_t column = 0; column < dim; column += kWidth) {
      store(to + column / kColumns * panel_floats + key / Format::kStep * kColumns +
                column % kColumns,
            Format::load_columns(row, row_stride, num_keys - key, column, dim));
    }
  }
}

// Rows of the next tile that are asked for a few at a time, while the current one is computed with:
// all at once they would fill the core's miss buffers and stall it.
struct PrefetchRows {
  const char* row;
  int64_t row_bytes;     // from one row to the next
  int64_t useful_bytes;  // of a row
  int64_t rows_left;

  FA3_INLINE void one(PrefetchRows* rows) {
    constexpr int64_t kCacheLine = 64;
    if (rows->rows_left <= 0) return;
    for (int64_t byte = 0; byte < rows->useful_bytes; byte += kCacheLine) {
      __builtin_prefetch(rows->row + byte, 0, 2);
    }
    rows->row += rows->row_bytes;
    --rows->rows_left;
  }
};

// Pages are asked for while they are gathered (rows_of).
template <class T>
FA3_INLINE PrefetchRows prefetch_rows(const KeySource<T>& keys, int64_t begin, int64_t end) {
  constexpr int64_t kBytes = sizeof(T);
  if (keys.pages.numbers != nullptr) return {};
  return {.row = reinterpret_cast<const char*>(keys.data + begin * keys.row_stride),
          .row_bytes = keys.row_stride * kBytes,
          .useful_bytes = keys.dim * kBytes,
          .rows_left = end - begin};
}

}  // namespace fa3::cpu::FA3_ISA
