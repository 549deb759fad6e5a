// SPDX-License-Identifier: Apache-2.0
// The scores of one key block a second time, by one warp alone: P that is of no use (it overflowed,
// or its scores are huge) is in the registers that held them. Q and K come from global memory,
// because their shared memory may hold other tiles by now. Rare, so it is kept short rather than
// fast.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/tile/rows.h"

namespace fa3::cuda {

// The keys of a block, in pages or not.
template <bool MayHavePages>
struct BlockKeys {
  const RowTensor& tensor;
  int batch, head;
  int first;             // of the block: a row of the tensor, or of the sequence where it has pages
  int count;             // what lies behind them has score 0
  const int32_t* table;  // the sequence's pages; null: none
  unsigned page_size;
  int num_pages;

  // Null where there is no such key. Volatile, so that page numbers are loaded one after the other:
  // registers are few.
  template <Element E>
  __device__ __forceinline__ const Bits<E>* at(int key) const {
    if (key >= count) return nullptr;
    const int row = first + key;
    if (!MayHavePages || !table) return tensor.template at<E>(batch, head, row);
    const int page = *static_cast<const volatile int32_t*>(table + unsigned(row) / page_size);
    if (unsigned(page) >= unsigned(num_pages)) return nullptr;
    return tensor.template at<E>(page, head, int(unsigned(row) % page_size));
  }
};

// 16 bytes of a row from a column on, or zeros: where there is no row, and from `columns` on.
// AnyColumns: rows may begin, and end, within 16 bytes.
template <Element E, bool AnyColumns>
__device__ __forceinline__ void load_columns(const Bits<E>* row, int column, int columns,
                                             uint32_t (&value)[4]) {
  const int left = row ? columns - column : 0;
  if constexpr (AnyColumns) {
    if (columns % (16 / bytes_of(E)) != 0) {
      load_global_numbers(left, row + column, value);
      return;
    }
  }
  load_global_if(left > 0, row + column, value);
}

// The rows of a warp and the keys of a block.
//
// A lane loads 16 bytes of a row at once, where a product wants two times 4 bytes from it. The sum
// over columns does not care which column is which, as long as Q and K agree: so a lane's first 8
// bytes serve one product, its others the next.
template <Element E, int HeadDim, bool AnyColumns, int Count, class Keys>
__device__ __forceinline__ void recompute_score(float (&scores)[Count], const RowTensor& q,
                                                int batch, const LaneRows& queries,
                                                const Keys& keys) {
  constexpr int kLaneColumns = 16 / bytes_of(E);
  constexpr int kColumns = kLaneColumns * kQuadLanes;  // of two products
  constexpr int kKeys = 8;
  const int lane = int(thread_in_block() % kWarpSize);
#pragma unroll
  for (float& score : scores) score = 0.0f;
#pragma unroll 1
  for (int column = lane % kQuadLanes * kLaneColumns; column < HeadDim; column += kColumns) {
    uint32_t rows[kRowsPerThread][4];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      const Bits<E>* const row = q.at<E>(batch, queries.head[r], queries.row[r]);
      load_columns<E, AnyColumns>(queries.exists[r] ? row : nullptr, column, q.columns, rows[r]);
    }
#pragma unroll
    for (int n = 0; n < Count * 2; n += kKeys) {
      uint32_t b[4];
      load_columns<E, AnyColumns>(keys.template at<E>(n + lane / kQuadLanes), column, q.columns, b);
#pragma unroll
      for (int half = 0; half < 4; half += 2) {
        const uint32_t a[4] = {rows[0][half], rows[1][half], rows[0][half + 1], rows[1][half + 1]};
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
