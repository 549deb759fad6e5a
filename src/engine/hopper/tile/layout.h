// SPDX-License-Identifier: Apache-2.0
// How wgmma finds a tile of tile_layout.h: its descriptors. Plain constexpr: tested on the host.
#pragma once

#include <cstdint>

#include "engine/cuda/tile/tile_layout.h"

namespace fa3::hopper::tile {

using cuda::kChunkBytes;
using cuda::kMmaBytes;
using cuda::Major;
using cuda::TileLayout;

inline constexpr int kSwizzleRows = 8;  // of one core matrix

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
