// SPDX-License-Identifier: Apache-2.0
// How a tile lies in shared memory, and its wgmma descriptors. A tile of R rows is stored as slabs
// of 64 (or 32) columns: slab[c / slab_columns][row][c % slab_columns], each row 128 (or 64) bytes
// wide with its 16-byte chunks permuted by the row's low bits (the hardware's swizzle: TMA and
// wgmma agree on it). Plain constexpr: tested on the host. Next: fragment.h.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace fa3::hopper::tile {

inline constexpr int kChunkBytes = 16;  // the swizzle moves whole chunks
inline constexpr int kSwizzleRows = 8;  // rows of one core matrix
inline constexpr int kMmaBytes = 32;    // depth of one matrix product

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

// The 64-bit matrix descriptor (PTX ISA, "matrix descriptor format"). All fields count 16 bytes.
//   bits 0-13 start address, 16-29 leading byte offset, 32-45 stride byte offset, 62-63 swizzle.
// The low word holds what changes from stage to stage, the high word is a constant of the layout.
inline constexpr uint32_t kSwizzle128 = 1;
inline constexpr uint32_t kSwizzle64 = 2;

// Stride: to the next 8 rows.
FA3_HD constexpr uint32_t descriptor_high(TileLayout layout) {
  const uint32_t swizzle = layout.row_bytes() == 128 ? kSwizzle128 : kSwizzle64;
  return uint32_t(kSwizzleRows * layout.row_bytes()) >> 4 | swizzle << 30;
}

// Reduction along columns. The leading offset is not used by swizzled operands of this kind.
FA3_HD constexpr uint32_t k_major_low(uint32_t address) {
  return address >> 4 | uint32_t(kChunkBytes) >> 4 << 16;
}

// Reduction along rows. Leading: to the next slab of columns.
FA3_HD constexpr uint32_t mn_major_low(TileLayout layout, uint32_t address) {
  return address >> 4 | uint32_t(layout.slab_bytes()) >> 4 << 16;
}

// Addresses stay under 256 KB, so adding `bytes` to the low word never carries out of 14 bits.
FA3_HD constexpr uint64_t descriptor(TileLayout layout, uint32_t low, int bytes) {
  return (uint64_t{descriptor_high(layout)} << 32 | low) + (uint64_t(bytes) >> 4);
}

}  // namespace fa3::hopper::tile
