// SPDX-License-Identifier: Apache-2.0
// How a tile lies in shared memory, and how wgmma is told. A tile of R rows is stored as slabs of 64
// (or 32) columns: slab[c / slab_columns][row][c % slab_columns], each row 128 (or 64) bytes wide
// with its 16-byte chunks permuted by the row's low bits (the hardware's swizzle: copy engine,
// wgmma and our own stores agree on it). Plain constexpr: tested on the host. Next: fragment.h.
#pragma once

#include <cstdint>

#include "core/macros.h"
#include "engine/hopper/ptx/element.h"

namespace fa3::hopper::tile {

inline constexpr int kChunkBytes = 16;  // the swizzle moves whole chunks
inline constexpr int kSwizzleRows = 8;  // rows of one core matrix
inline constexpr int kMmaK = 16;        // depth of one wgmma for 16-bit elements

struct TileLayout {
  int rows;
  int columns;

  // Widest row the columns divide into: 64 columns = 128 bytes, else 32 columns = 64 bytes.
  FA3_HD constexpr int slab_columns() const { return columns % 64 == 0 ? 64 : 32; }
  FA3_HD constexpr int row_bytes() const { return slab_columns() * kElementBytes; }
  FA3_HD constexpr int slabs() const { return columns / slab_columns(); }
  FA3_HD constexpr int slab_bytes() const { return rows * row_bytes(); }
  FA3_HD constexpr int bytes() const { return slabs() * slab_bytes(); }

  // Chunk index XOR row: 8 chunks of a 128-byte row by row % 8, 4 of a 64-byte row by row / 2 % 4.
  FA3_HD constexpr int swizzled_chunk(int chunk, int row) const {
    return row_bytes() == 128 ? chunk ^ (row & 7) : chunk ^ ((row >> 1) & 3);
  }

  // Byte offset of the 16-byte chunk that holds (row, column).
  FA3_HD constexpr int chunk_offset(int row, int column) const {
    const int slab = column / slab_columns();
    const int chunk = column % slab_columns() * kElementBytes / kChunkBytes;
    return slab * slab_bytes() + row * row_bytes() + swizzled_chunk(chunk, row) * kChunkBytes;
  }

  FA3_HD constexpr int element_offset(int row, int column) const {
    return chunk_offset(row, column) + column * kElementBytes % kChunkBytes;
  }

  // Operand with its reduction dimension along columns (Q and K of Q K^T): start of k-step `step`.
  // The swizzle acts on absolute address bits, so plain addition stays inside the pattern.
  FA3_HD constexpr int k_major_step(int step) const {
    const int column = step * kMmaK;
    return column / slab_columns() * slab_bytes() + column % slab_columns() * kElementBytes;
  }

  // Operand with its reduction dimension along rows (V of P V): start of k-step `step`.
  FA3_HD constexpr int mn_major_step(int step) const { return step * kMmaK * row_bytes(); }
};

// The 64-bit matrix descriptor (PTX ISA, "matrix descriptor format"). All fields count 16 bytes.
//   bits 0-13 start address, 16-29 leading byte offset, 32-45 stride byte offset, 62-63 swizzle.
inline constexpr uint64_t kSwizzle128 = 1;
inline constexpr uint64_t kSwizzle64 = 2;

FA3_HD constexpr uint64_t descriptor_bits(uint32_t address, uint32_t leading_bytes,
                                          uint32_t stride_bytes, uint64_t swizzle) {
  return uint64_t((address >> 4) & 0x3FFF) | uint64_t((leading_bytes >> 4) & 0x3FFF) << 16 |
         uint64_t((stride_bytes >> 4) & 0x3FFF) << 32 | swizzle << 62;
}

FA3_HD constexpr uint64_t swizzle_field(TileLayout layout) {
  return layout.row_bytes() == 128 ? kSwizzle128 : kSwizzle64;
}

// Stride: to the next 8 rows. The leading offset is not used by swizzled K-major operands.
FA3_HD constexpr uint64_t k_major_descriptor(TileLayout layout, uint32_t address) {
  return descriptor_bits(address, kChunkBytes, kSwizzleRows * layout.row_bytes(),
                         swizzle_field(layout));
}

// Leading: to the next slab of columns. Stride: to the next 8 rows, along the reduction.
FA3_HD constexpr uint64_t mn_major_descriptor(TileLayout layout, uint32_t address) {
  return descriptor_bits(address, layout.slab_bytes(), kSwizzleRows * layout.row_bytes(),
                         swizzle_field(layout));
}

// Addresses stay under 256 KB, so adding to the low field never carries out of its 14 bits.
FA3_HD constexpr uint64_t advance(uint64_t descriptor, int bytes) {
  return descriptor + static_cast<uint64_t>(bytes >> 4);
}

}  // namespace fa3::hopper::tile
