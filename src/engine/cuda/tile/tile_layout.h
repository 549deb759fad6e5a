// SPDX-License-Identifier: Apache-2.0
// How a tile lies in shared memory. A tile of R rows is stored as slabs of 64 (or 32) columns:
// slab[c / slab_columns][row][c % slab_columns], each row 128 (or 64) bytes wide with its 16-byte
// chunks permuted by the row's low bits: so eight rows of a column lie in different banks for
// ldmatrix, and it is the swizzle that TMA and wgmma know. Plain constexpr: tested on the host.
// Next: fragment.h.
#pragma once

#include "core/macros.h"

namespace fa3::cuda {

inline constexpr int kChunkBytes = 16;  // the swizzle moves whole chunks
inline constexpr int kMmaBytes = 32;    // depth of one matrix product

// Which dimension of a wgmma operand is contiguous in shared memory: the one that the product sums
// over (K), or the other one (M of A, N of B).
enum class Major : unsigned char { kK, kMn };

struct TileLayout {
  int rows;
  int columns;
  int element_bytes = 2;

  // Widest row the columns divide into: 128 bytes, else 64.
  FA3_HD constexpr int row_bytes() const { return columns * element_bytes % 128 == 0 ? 128 : 64; }
  FA3_HD constexpr int slab_columns() const { return row_bytes() / element_bytes; }
  FA3_HD constexpr int slabs() const { return columns / slab_columns(); }
  FA3_HD constexpr int slab_bytes() const { return rows * row_bytes(); }
  // Elements of the reduction dimension that one matrix product takes.
  FA3_HD constexpr int mma_depth() const { return kMmaBytes / element_bytes; }
  FA3_HD constexpr int bytes() const { return slabs() * slab_bytes(); }

  // Chunk index XOR row: 8 chunks of a 128-byte row by row % 8, 4 of a 64-byte row by row / 2 % 4.
  FA3_HD constexpr int swizzled_chunk(int chunk, int row) const {
    return row_bytes() == 128 ? chunk ^ (row & 7) : chunk ^ ((row >> 1) & 3);
  }

  // Byte offset of the 16-byte chunk that holds (row, column): what tests hold the rest against.
  FA3_HD constexpr int chunk_offset(int row, int column) const {
    const int slab = column / slab_columns();
    const int chunk = column % slab_columns() * element_bytes / kChunkBytes;
    return slab * slab_bytes() + row * row_bytes() + swizzled_chunk(chunk, row) * kChunkBytes;
  }

  FA3_HD constexpr int element_offset(int row, int column) const {
    return chunk_offset(row, column) + column * element_bytes % kChunkBytes;
  }

  // Operand with its reduction dimension along columns (Q and K of Q K^T): start of k-step `step`.
  // The swizzle acts on absolute address bits, so plain addition stays inside the pattern.
  FA3_HD constexpr int k_major_step(int step) const {
    const int column = step * mma_depth();
    return column / slab_columns() * slab_bytes() + column % slab_columns() * element_bytes;
  }

  // Operand with its reduction dimension along rows (V of P V): start of k-step `step`.
  FA3_HD constexpr int mn_major_step(int step) const { return step * mma_depth() * row_bytes(); }
};

}  // namespace fa3::cuda
