// SPDX-License-Identifier: Apache-2.0
// The scores of one key block a second time, by one warp alone, for weights that have overflowed and
// taken the scores with them. Q and K come from global memory, because their shared memory may hold
// other tiles by now. Rare, so it is kept short rather than fast.
#pragma once

#include "engine/cuda/instructions.cuh"
#include "engine/cuda/rows.h"

namespace fa3::cuda {

inline constexpr int kKeysOfProduct = 8;

// A block's keys, all of which exist, in rows one stride apart. A lane goes through those of its number,
// one of every product.
template <Element E>
struct KeysInRow {
  const Bits<E>* key;
  int64_t stride;

  __device__ __forceinline__ KeysInRow from(int number) const {
    return {key + number * stride, stride};
  }
  __device__ __forceinline__ KeysInRow at(int column) const { return {key + column, stride}; }
  __device__ __forceinline__ void load(bool wanted, uint32_t (&to)[4]) const {
    load_global_if(wanted, key, to);
  }
  __device__ __forceinline__ void advance() { key += kKeysOfProduct * stride; }
};

// The same in pages. Those of pages that do not exist are zeros.
template <Element E>
struct KeysInPages {
  const RowTensor& pages;
  const int32_t* table;
  unsigned page_size;
  int num_pages;
  int head;
  unsigned row;  // of the sequence's
  int column = 0;

  __device__ __forceinline__ KeysInPages from(int number) const {
    KeysInPages keys = *this;
    keys.row += unsigned(number);
    return keys;
  }
  __device__ __forceinline__ KeysInPages at(int first_column) const {
    KeysInPages keys = *this;
    keys.column = first_column;
    return keys;
  }
  // Volatile: page numbers come one after the other, since registers are few.
  __device__ __forceinline__ void load(bool wanted, uint32_t (&to)[4]) const {
    const int page = *static_cast<const volatile int32_t*>(table + row / page_size);
    const bool exists = unsigned(page) < unsigned(num_pages);
    load_global_if(wanted && exists, pages.at<E>(page, head, int(row % page_size)) + column, to);
  }
  __device__ __forceinline__ void advance() { row += kKeysOfProduct; }
};

// `queries` are the warp's rows; `keys` the block's.
//
// A lane loads 16 bytes of a row at once, where a product wants two times 4 bytes from it. The sum over
// columns does not care which column is which, as long as Q and K agree: so a lane's first 8 bytes
// serve one product, its others the next.
template <Element E, int HeadDim, int Count, class Keys>
__device__ __forceinline__ void score_again(float (&scores)[Count], const RowTensor& q, int batch,
                                            const LaneRows& queries, const Keys& keys) {
  constexpr int kLaneColumns = 16 / bytes_of(E);
  constexpr int kColumns = kLaneColumns * kQuadLanes;  // of two products
  const int lane = int(thread_in_block() % kWarpSize);
  const Bits<E>* const q_row[kRowsPerThread] = {q.at<E>(batch, queries.head[0], queries.row[0]),
                                                q.at<E>(batch, queries.head[1], queries.row[1])};
  const Keys mine = keys.from(lane / kQuadLanes);
#pragma unroll
  for (float& score : scores) score = 0.0f;
#pragma unroll 1
  for (int column = lane % kQuadLanes * kLaneColumns; column < HeadDim; column += kColumns) {
    const bool exists = column < q.columns;  // zero outside of the tensor
    uint32_t low_row[4], high_row[4];
    load_global_if(exists && queries.exists[0], q_row[0] + column, low_row);
    load_global_if(exists && queries.exists[1], q_row[1] + column, high_row);
    Keys key = mine.at(column);
#pragma unroll
    for (int n = 0; n < Count * 2; n += kKeysOfProduct, key.advance()) {
      uint32_t b[4];
      key.load(exists, b);
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
