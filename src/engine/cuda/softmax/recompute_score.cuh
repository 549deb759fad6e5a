// SPDX-License-Identifier: Apache-2.0
// The scores of one key block a second time, by one warp alone: P that is of no use (it overflowed,
// or its scores are huge) is in the registers that held them. Q and K come from global memory,
// because their shared memory may hold other tiles by now. Rare, so it is kept short rather than
// fast.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/tile/rows.h"

namespace fa3::cuda {

// Used like a pointer to a column of a key in pages, with kRow for a stride. Keys of pages that do
// not exist are zeros.
template <Element E>
struct PagedKey {
  static constexpr int64_t kRow = int64_t{1} << 32;

  const RowTensor& pages;
  const int32_t* table;
  unsigned page_size;
  int num_pages;
  int head;
  int64_t place;  // the sequence's row times kRow, and the column

  __device__ __forceinline__ void operator+=(int64_t distance) { place += distance; }
  __device__ __forceinline__ PagedKey operator+(int64_t distance) const {
    PagedKey other = *this;
    other += distance;
    return other;
  }
};

// Volatile, so that page numbers are loaded one after the other: registers are few.
template <Element E>
__device__ __forceinline__ void load_global_if(bool condition, const PagedKey<E>& key,
                                               uint32_t (&value)[4]) {
  const unsigned row = unsigned(key.place / key.kRow), column = unsigned(key.place);
  const int page = *static_cast<const volatile int32_t*>(key.table + row / key.page_size);
  const bool exists = unsigned(page) < unsigned(key.num_pages);
  load_global_if(condition && exists,
                 key.pages.template at<E>(page, key.head, int(row % key.page_size)) + column,
                 value);
}

// `queries` are the warp's rows; `keys` points at the block's first row, of which and of whose
// followers `num_keys` exist; others have score 0.
//
// A lane loads 16 bytes of a row at once, where a product wants two times 4 bytes from it. The sum
// over columns does not care which column is which, as long as Q and K agree: so a lane's first 8
// bytes serve one product, its others the next.
template <Element E, int HeadDim, int Count, class Key>
__device__ __forceinline__ void recompute_score(float (&scores)[Count], const RowTensor& q,
                                                int batch, const LaneRows& queries, Key keys,
                                                int64_t key_stride, int num_keys) {
  constexpr int kLaneColumns = 16 / bytes_of(E);
  constexpr int kColumns = kLaneColumns * kQuadLanes;  // of two products
  constexpr int kKeys = 8;
  const int lane = int(thread_in_block() % kWarpSize);
  const Bits<E>* const q_row[kRowsPerThread] = {q.at<E>(batch, queries.head[0], queries.row[0]),
                                                q.at<E>(batch, queries.head[1], queries.row[1])};
  const int lane_key = lane / kQuadLanes;
  const Key first_key = keys + lane_key * key_stride;
#pragma unroll
  for (float& score : scores) score = 0.0f;
#pragma unroll 1
  for (int column = lane % kQuadLanes * kLaneColumns; column < HeadDim; column += kColumns) {
    const bool exists = column < q.columns;  // zero outside of the tensor
    uint32_t low_row[4], high_row[4];
    load_global_if(exists && queries.exists[0], q_row[0] + column, low_row);
    load_global_if(exists && queries.exists[1], q_row[1] + column, high_row);
    Key key = first_key + column;
#pragma unroll
    for (int n = 0; n < Count * 2; n += kKeys, key += kKeys * key_stride) {
      uint32_t b[4];
      load_global_if(exists && n + lane_key < num_keys, key, b);
#pragma unroll
      for (int half = 0; half < 4; half += 2) {
        const uint32_t a[4] = {low_row[half], high_row[half], low_row[half + 1],
                               high_row[half + 1]};
        if constexpr (E == Element::kE4m3) {
          mma_m16n8k32(scores + n / 2, a, {b[half], b[half + 1]});
        } else {
          mma_m16n8k16<E>(scores + n / 2, a, {b[half], b[half + 1]});
        }
      }
    }
  }
}

}  // namespace fa3::cuda
