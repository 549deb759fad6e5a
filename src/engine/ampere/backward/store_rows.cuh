// SPDX-License-Identifier: Apache-2.0
// Accumulators of a warp to rows of a tensor, without shared memory: four blocks of eight columns,
// exchanged within quads, give each lane eight neighbours of a row.
#pragma once

#include "engine/ampere/backward/row_block.h"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/quad.cuh"

namespace fa3::ampere {

inline constexpr int kVectorElements = 8;  // 16 bytes

// Eight neighbours of a row, of which `count` exist.
__device__ __forceinline__ void store_vector(uint16_t* to, int count, const uint32_t (&vector)[4],
                                             bool whole_vectors) {
  if (whole_vectors) {
    store_global_if(count > 0, to, vector);
  } else {
#pragma unroll
    for (int i = 0; i < kVectorElements; ++i) {
      if (i < count) to[i] = uint16_t(i % 2 == 0 ? vector[i / 2] : vector[i / 2] >> 16);
    }
  }
}

// 16 of a sequence's rows, from `first` on; those behind its used ones become zeros. Column of a
// block: column_of(block).
template <Element E, int Blocks, class ColumnOf>
__device__ __forceinline__ void store_rows(const StoredRows& to, const RowBlock& rows, int first,
                                           const float (&sums)[Blocks][4], float scale,
                                           ColumnOf column_of) {
  const int columns = to.tensor.columns;
  const int lane = int(thread_in_block() % kWarpSize);
#pragma unroll
  for (int block = 0; block < Blocks; block += kQuadLanes) {
    uint32_t packed[kRowsPerThread][kQuadLanes];
#pragma unroll
    for (int j = 0; j < kQuadLanes; ++j) {
      const float(&s)[4] = sums[block + j < Blocks ? block + j : block];
      packed[0][j] = pack_pair<E>(s[0] * scale, s[1] * scale);
      packed[1][j] = pack_pair<E>(s[2] * scale, s[3] * scale);
    }
    const int own = block + lane % kQuadLanes;
    const int column = own < Blocks ? column_of(own) : columns;  // of none
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      transpose_in_quad(packed[r]);
      const int row = first + lane / kQuadLanes + r * kRowDistance;
      if (row >= rows.used) {
#pragma unroll
        for (uint32_t& pair : packed[r]) pair = 0;
      }
      store_vector(to.tensor.at(rows.batch, rows.head, rows.begin + row) + column,
                   row < rows.owned ? columns - column : 0, packed[r], to.whole_vectors);
    }
  }
}

// Zeros for a sequence's rows [begin, end), by `Threads` threads.
template <int Threads>
__device__ __forceinline__ void clear_rows(const RowTensor& to, const RowBlock& rows, int begin,
                                           int end) {
  for (int row = begin + int(threadIdx.x) / kWarpSize; row < end; row += Threads / kWarpSize) {
    uint16_t* const at = to.at(rows.batch, rows.head, rows.begin + row);
    for (int i = int(threadIdx.x) % kWarpSize; i < to.columns; i += kWarpSize) at[i] = 0;
  }
}

}  // namespace fa3::ampere
