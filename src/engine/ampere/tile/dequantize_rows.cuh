// SPDX-License-Identifier: Apache-2.0
// Rows of e4m3 or e5m2 become a tile of 16-bit elements in shared memory. Every number of either is
// one of fp16 and of bf16, so nothing is rounded; scales act elsewhere, in the scores and on the
// finished tile. Most of these GPUs have no instruction for it: bits go to their places, and a
// product puts the exponent right. A thread waits for what it loads: other CTAs of its SM do not.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/smem.cuh"
#include "engine/cuda/tile/tile_layout.h"

namespace fa3::ampere {

using namespace cuda;

// What a float8 number is that is not finite; `nan` has all bits of a 16-bit NaN but the sign.
template <Element E>
__device__ __forceinline__ uint32_t not_finite(uint32_t byte, bool is_e5m2) {
  constexpr uint32_t kNan = 0x7fff, kInfinity16 = E == Element::kBf16 ? 0x7f80 : 0x7c00;
  return (byte & 0x80) << 8 | (is_e5m2 && byte % 4 == 0 ? kInfinity16 : kNan);
}

// How the bits of a launch's cache move: what a kernel has once, for both formats.
template <Element E>
struct Float8Bits {
  bool is_e5m2;

  // Four finite numbers as two pairs. Bytes go to the upper halves of their elements; to exponents
  // as wide as the element's; and by the power of two between the two biases.
  __device__ __forceinline__ void widen(uint32_t four, uint32_t& low, uint32_t& high) const {
    const int shift = E == Element::kFp16 ? !is_e5m2 : is_e5m2 ? 3 : 4;
    const uint32_t factor = E == Element::kFp16 ? (is_e5m2 ? 0x3c003c00 : 0x5c005c00)
                                                : (is_e5m2 ? 0x77807780 : 0x7b807b80);
    const auto of = [&](uint32_t bytes) {
      return multiply_pairs<E>((bytes & 0x80008000) | (bytes & 0x7f007f00) >> shift, factor);
    };
    low = of((four & 0xff) << 8 | (four & 0xff00) << 16);
    high = of((four >> 16 & 0xff) << 8 | (four & 0xff000000));
  }
  // A bit for each of the four that is not finite.
  __device__ __forceinline__ uint32_t not_finite_bits(uint32_t four) const {
    const uint32_t exponents = is_e5m2 ? 0x7c7c7c7c : 0x7f7f7f7f;  // e4m3: those of NaN
    return ((four & exponents) + (is_e5m2 ? 0x04040404 : 0x01010101)) & 0x80808080;
  }
  // Widens any numbers, also those that are not finite.
  __device__ __forceinline__ void widen_any(uint32_t four, uint32_t& low, uint32_t& high) const {
    widen(four, low, high);
    const uint32_t bits = not_finite_bits(four);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((bits >> (8 * i) & 0x80) == 0) continue;
      uint32_t& pair = i < 2 ? low : high;
      const int half = i % 2 * 16;
      pair = (pair & ~(0xffffu << half)) | not_finite<E>(four >> (8 * i) & 0xff, is_e5m2) << half;
    }
  }
};

inline constexpr int kBytesAtOnce = 16;  // of a row, that a thread loads: two chunks of the tile

// What a thread has of a tile: of every `kRows`-th row from `row` on, the columns from `column` on.
template <Element E, TileLayout Layout, int Threads>
struct DequantizedShare {
  static constexpr int kLanes = Layout.columns / kBytesAtOnce, kRows = Threads / kLanes;
  static constexpr int kPasses = Layout.rows / kRows;
  static constexpr int kAtOnce = kPasses < 8 ? kPasses : 8;  // passes whose loads are in flight
  static_assert(Threads % kLanes == 0 && Layout.rows % kRows == 0 && kPasses % kAtOnce == 0);
  using Bytes = uint32_t[kBytesAtOnce / 4];

  Float8Bits<E> bits;
  int row = int(thread_in_block()) / kLanes;
  int column = int(thread_in_block()) % kLanes * kBytesAtOnce;

  // Finite numbers.
  __device__ __forceinline__ void store(uint32_t tile, int first, const Bytes& bytes) const {
#pragma unroll
    for (int chunk = 0; chunk < 2; ++chunk) {
      uint32_t wide[4];
      bits.widen(bytes[2 * chunk], wide[0], wide[1]);
      bits.widen(bytes[2 * chunk + 1], wide[2], wide[3]);
      st_shared_b32x4(tile + uint32_t(Layout.chunk_offset(first + row, column + 8 * chunk)), wide);
    }
  }

  // Any numbers at any address, `left` of which exist.
  __device__ __forceinline__ void take_slowly(uint32_t tile, int first, const uint8_t* from,
                                              int left) const {
#pragma unroll 1
    for (int at = 0; at < kBytesAtOnce; at += 4) {
      uint32_t four = 0, wide[2];
#pragma unroll 1
      for (int i = 0; i < 4; ++i) {
        if (at + i < left) four |= uint32_t{__ldg(from + at + i)} << (8 * i);
      }
      bits.widen_any(four, wide[0], wide[1]);
      const uint32_t to = tile + uint32_t(Layout.element_offset(first + row, column + at));
      st_shared_b32(to, wide[0]);
      st_shared_b32(to + 4, wide[1]);
    }
  }
};

// `row_at` gives where a row begins, or null. `width`: what addresses are multiples of. The usual
// case is short: a kernel that the instruction cache does not hold waits for its instructions.
template <Element E, TileLayout Layout, int Threads, class RowAt>
__device__ __forceinline__ void dequantize_rows(uint32_t tile, const RowAt& row_at, int columns,
                                                int width, bool is_e5m2) {
  using Share = DequantizedShare<E, Layout, Threads>;
  const Share share{{is_e5m2}};
  const bool at_once = width == kBytesAtOnce && share.column + kBytesAtOnce <= columns;
#pragma unroll 1
  for (int first = 0; first < Layout.rows; first += Share::kAtOnce * Share::kRows) {
    uint32_t special = !at_once;
    if (at_once) {
      typename Share::Bytes read[Share::kAtOnce];
#pragma unroll
      for (int i = 0; i < Share::kAtOnce; ++i) {
        const uint8_t* const row = row_at(first + i * Share::kRows + share.row);
        load_global_if(row != nullptr, row + share.column, read[i]);
      }
#pragma unroll
      for (int i = 0; i < Share::kAtOnce; ++i) {
#pragma unroll
        for (uint32_t four : read[i]) special |= share.bits.not_finite_bits(four);
        share.store(tile, first + i * Share::kRows, read[i]);
      }
    }
    if (special == 0) continue;
#pragma unroll 1
    for (int i = 0; i < Share::kAtOnce; ++i) {
      const uint8_t* const row = row_at(first + i * Share::kRows + share.row);
      share.take_slowly(tile, first + i * Share::kRows, row + share.column,
                        row == nullptr ? 0 : columns - share.column);
    }
  }
}

}  // namespace fa3::ampere
