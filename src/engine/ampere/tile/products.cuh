// SPDX-License-Identifier: Apache-2.0
// The products of one warp, by mma.sync: 16 rows by 8 columns at a time, 16 deep. Accumulators are
// [rows / 16][columns / 8][4], as fragment.h says.
#pragma once

#include "engine/ampere/tile/operand.cuh"

namespace fa3::ampere {

template <int RowTiles, int Blocks>
__device__ __forceinline__ void clear(float (&sums)[RowTiles][Blocks][4]) {
#pragma unroll
  for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
    for (int n = 0; n < Blocks; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[r][n][i] = 0.0f;
    }
  }
}

// 16 columns of B, as ldmatrix brings them, for all rows of A.
template <Element E, int RowTiles, int Blocks>
__device__ __forceinline__ void multiply_step(float (&sums)[RowTiles][Blocks][4],
                                              const uint32_t (&a)[RowTiles][4],
                                              const uint32_t (&b)[4], int columns) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) {
      mma_m16n8k16<E>(sums[r][2 * columns + half], a[r], {b[2 * half], b[2 * half + 1]});
    }
  }
}

// sums = A B^T, both with the summed dimension along their columns.
template <Element E, int Depth, int RowTiles, int Blocks, TileLayout LayoutA, TileLayout LayoutB>
__device__ __forceinline__ void multiply_abt(float (&sums)[RowTiles][Blocks][4],
                                             const RowsFirst<LayoutA>& a,
                                             const ChunksFirst<LayoutB>& b) {
  clear(sums);
#pragma unroll
  for (int step = 0; step < Depth / 16; ++step) {
    uint32_t left[RowTiles][4];
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) a.load(r, step, left[r]);
#pragma unroll
    for (int n = 0; n < Blocks / 2; ++n) {
      uint32_t right[4];
      b.load(n, step, right);
      multiply_step<E, RowTiles, Blocks>(sums, left, right, n);
    }
  }
}

// sums += A B, A packed in registers, B with the summed dimension along its rows.
template <Element E, int Depth, int RowTiles, int Blocks, TileLayout LayoutB>
__device__ __forceinline__ void add_ab(float (&sums)[RowTiles][Blocks][4],
                                       const uint32_t (&a)[RowTiles][Depth / 16][4],
                                       const RowsFirst<LayoutB>& b) {
#pragma unroll
  for (int step = 0; step < Depth / 16; ++step) {
    uint32_t left[RowTiles][4];
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) {
#pragma unroll
      for (int i = 0; i < 4; ++i) left[r][i] = a[r][step][i];
    }
#pragma unroll
    for (int n = 0; n < Blocks / 2; ++n) {
      uint32_t right[4];
      b.load_transposed(step, n, right);
      multiply_step<E, RowTiles, Blocks>(sums, left, right, n);
    }
  }
}

// sums = A^T B, both with the summed dimension along their rows. Warps take turns with 16 columns
// of A, every `StrideA`-th, and of B. meanwhile(step): instructions that run between the products
// of a step and those of the next.
template <Element E, int Depth, int StrideA, int StrideB, int RowTiles, int Blocks,
          TileLayout LayoutA, TileLayout LayoutB, class Meanwhile>
__device__ __forceinline__ void multiply_atb(float (&sums)[RowTiles][Blocks][4],
                                             const ChunksFirst<LayoutA>& a,
                                             const RowsFirst<LayoutB>& b,
                                             const Meanwhile& meanwhile) {
  clear(sums);
#pragma unroll
  for (int step = 0; step < Depth / 16; ++step) {
    uint32_t left[RowTiles][4];
#pragma unroll
    for (int r = 0; r < RowTiles; ++r) a.load_transposed(step, r * StrideA, left[r]);
#pragma unroll
    for (int n = 0; n < Blocks / 2; ++n) {
      uint32_t right[4];
      b.load_transposed(step, n * StrideB, right);
      multiply_step<E, RowTiles, Blocks>(sums, left, right, n);
    }
    meanwhile(step);
  }
}

}  // namespace fa3::ampere
