// SPDX-License-Identifier: Apache-2.0
//
// Rows of keys or values one stride apart, wherever they lie: in one tensor, in a page, or gathered
// from several pages. What reads them needs to know no pages. Next: pack.h.
#pragma once

#include "engine/cpu/kernels/block_job.h"
#include "engine/cpu/simd/vector/vector.h"

namespace fa3::cpu::FA3_ISA {

template <class E>
struct KeyRows {
  const E* data;
  int64_t stride;
};

// All keys, or all values, of a job's sequence.
template <class E>
struct KeySource {
  const E* data;
  int64_t row_stride;
  int64_t page_stride;
  KeyPages pages;
  int64_t dim;
  E* gathered;  // room for a tile's rows
};

template <class E>
FA3_INLINE const E* row_of(const KeySource<E>& keys, int64_t key) {
  if (keys.pages.numbers == nullptr) return keys.data + key * keys.row_stride;
  const int64_t at = keys.pages.first_row + key;
  const int64_t page = keys.pages.numbers[at / keys.pages.rows];
  return keys.data + page * keys.page_stride + at % keys.pages.rows * keys.row_stride;
}

// Visits the rows from a key on, without a division for each.
template <class E>
struct RowWalk {
  const KeySource<E>& keys;
  int64_t page, row;

  FA3_INLINE RowWalk from(const KeySource<E>& keys, int64_t key) {
    const int64_t at = keys.pages.first_row + key;
    return {keys, at / keys.pages.rows, at % keys.pages.rows};
  }
  FA3_INLINE const E* next(RowWalk& walk) {
    const KeySource<E>& keys = walk.keys;
    const E* found =
        keys.data + keys.pages.numbers[walk.page] * keys.page_stride + walk.row * keys.row_stride;
    if (++walk.row == keys.pages.rows) {
      walk.row = 0;
      ++walk.page;
    }
    return found;
  }
};

template <class E>
FA3_INLINE KeySource<E> keys_of(const BlockJob& job) {
  return {static_cast<const E*>(job.k),
          job.k_row_stride,
          job.pages.k_stride,
          job.pages,
          job.head_dim,
          reinterpret_cast<E*>(job.buffers.gathered_k)};
}

template <class E>
FA3_INLINE KeySource<E> values_of(const BlockJob& job) {
  return {static_cast<const E*>(job.v),
          job.v_row_stride,
          job.pages.v_stride,
          job.pages,
          job.head_dim_v,
          reinterpret_cast<E*>(job.buffers.gathered_v)};
}

template <class E>
FA3_INLINE void prefetch_whole_row(const E* row, int64_t dim) {
  constexpr int64_t kCacheLine = 64 / sizeof(E);
  for (int64_t c = 0; c < dim; c += kCacheLine) __builtin_prefetch(row + c, 0, 2);
}

// The keys [begin, end), at most a tile. While they are gathered, as many keys behind them, up to
// `last`, are asked for from memory: who reads the rows cannot, knowing no pages.
template <class E>
static KeyRows<E> rows_of(const KeySource<E>& keys, int64_t begin, int64_t end, int64_t last) {
  if (keys.pages.numbers == nullptr) return {row_of(keys, begin), keys.row_stride};
  RowWalk<E> now = RowWalk<E>::from(keys, begin);
  RowWalk<E> later = RowWalk<E>::from(keys, end);
  for (int64_t i = 0; i < end - begin; ++i) {
    if (end + i < last) prefetch_whole_row(RowWalk<E>::next(later), keys.dim);
    __builtin_memcpy(keys.gathered + i * keys.dim, RowWalk<E>::next(now),
                     static_cast<size_t>(keys.dim) * sizeof(E));
  }
  return {keys.gathered, keys.dim};
}

}  // namespace fa3::cpu::FA3_ISA
