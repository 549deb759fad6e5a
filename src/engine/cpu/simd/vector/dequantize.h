// SPDX-License-Identifier: Apache-2.0
//
// float8 keys and values: turned into the floats they stand for, up to a panel of rows at a time,
// and from there on treated as floats. Next: attend_block.h.
#pragma once

#include <fa3/fa3.h>

#include "engine/cpu/simd/vector/pack.h"

namespace fa3::cpu::FA3_ISA {

struct Dequantized : Floats<float> {
  using Element = Float8;
};

// Queries may then be of any type, and are packed by the driver.
template <class Format>
constexpr bool kDequantizes = false;
template <>
constexpr bool kDequantizes<Dequantized> = true;

// A row as the floats it stands for. T: what its bytes are.
template <class T>
FA3_INLINE void dequantize_row(const Float8* row, int64_t dim, V scale, const float* means,
                               float* to) {
  const T* const numbers = reinterpret_cast<const T*>(row);
  for (int64_t c = 0; c < dim; c += kWidth) {
    const V mean = means == nullptr ? V{} : load_first(means + c, dim - c);
    store(to + c, load_first(numbers + c, dim - c) * scale + mean);
  }
}

// `count` rows from `first` on, each padded with zeros to `stride` floats: whole vectors. Asks for
// the rows that are `ahead` of them.
static void dequantize_rows(const KeySource<Float8>& keys, const RowQuantization& of, int64_t first,
                            int64_t count, int64_t ahead, int64_t stride, float* to) {
  const int64_t dim = keys.dim;
  constexpr int64_t kCacheLine = 64;
  for (int64_t r = first; r < first + count; ++r, to += stride) {
    const Float8* const row = row_of(keys, r);
    const Float8* const later = ahead == 0 ? row : row_of(keys, r + ahead);
    for (int64_t c = 0; c < dim; c += kCacheLine) __builtin_prefetch(later + c, 0, 2);
    const V scale = broadcast(of.descale[r / FA3_DESCALE_ROWS * of.block_stride]);
    of.is_e5m2 ? dequantize_row<Float8E5M2>(row, dim, scale, of.mean, to)
               : dequantize_row<Float8>(row, dim, scale, of.mean, to);
  }
}

constexpr int64_t whole_vectors(int64_t dim) {
  return (dim + kWidth - 1) / kWidth * kWidth;
}

// The keys and values [start, end), packed for Floats<float>.
static void pack_dequantized(const BlockJob& job, int64_t start, int64_t end) {
  using Packed = Floats<float>;
  constexpr int64_t kRows = 64;  // kMaxPanel: whole panels of every instruction set
  float* const rows = job.buffers.rows;
  const int64_t k_stride = whole_vectors(job.head_dim), v_stride = whole_vectors(job.head_dim_v);
  for (int64_t first = start; first < end; first += kRows) {
    const int64_t count = end - first < kRows ? end - first : kRows;
    dequantize_rows(keys_of<Float8>(job), job.k_quantization, first, count, 0, k_stride, rows);
    pack_keys<Packed>(rows, k_stride, count, job.head_dim,
                      job.buffers.k + (first - start) * job.head_dim);
    dequantize_rows(values_of<Float8>(job), job.v_quantization, first, count, 0, v_stride, rows);
    pack_values<Packed>(rows, v_stride, count, job.block_k, job.head_dim_v,
                        job.buffers.v + (first - start) * kPanel);
  }
}

}  // namespace fa3::cpu::FA3_ISA
