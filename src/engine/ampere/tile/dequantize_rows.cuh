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

// Four float8 numbers as two pairs.
template <Element E>
__device__ __forceinline__ void dequantize(uint32_t four, bool is_e5m2, uint32_t& low,
                                           uint32_t& high) {
  low = (four & 0xff) << 8 | (four & 0xff00) << 16;  // bytes, each in the upper half of its element
  high = (four >> 16 & 0xff) << 8 | (four & 0xff000000);
  if (E == Element::kFp16 && is_e5m2) return;
  // To exponents as wide as the element's; then by the power of two between the two biases.
  const int shift = E == Element::kFp16 ? 1 : is_e5m2 ? 3 : 4;
  const uint32_t factor = E == Element::kFp16 ? 0x5c005c00 : is_e5m2 ? 0x77807780 : 0x7b807b80;
  for (uint32_t* pair : {&low, &high}) {
    *pair = multiply_pairs<E>((*pair & 0x80008000) | (*pair & 0x7f007f00) >> shift, factor);
  }
  const uint32_t exponents = is_e5m2 ? 0x7c7c7c7c : 0x7f7f7f7f;  // e4m3: those of NaN
  const uint32_t largest = (four & exponents) + (is_e5m2 ? 0x04040404 : 0x01010101);
  if ((largest & 0x80808080) == 0) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if ((largest >> (8 * i) & 0x80) == 0) continue;
    uint32_t& pair = i < 2 ? low : high;
    const int half = i % 2 * 16;
    pair = (pair & ~(0xffffu << half)) | not_finite<E>(four >> (8 * i) & 0xff, is_e5m2) << half;
  }
}

inline constexpr int kBytesAtOnce = 16;  // of a row, that a thread loads: two chunks of the tile

// The first `left` bytes, one by one; the others are zeros.
__device__ __forceinline__ void load_bytes(const uint8_t* from, int left,
                                           uint32_t (&words)[kBytesAtOnce / 4]) {
#pragma unroll
  for (int word = 0; word < kBytesAtOnce / 4; ++word) {
    words[word] = 0;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      if (word * 4 + i < left) words[word] |= uint32_t{__ldg(from + word * 4 + i)} << (8 * i);
    }
  }
}

// `row_at` gives where a row begins, or null. `width`: what addresses are multiples of.
template <Element E, TileLayout Layout, int Threads, class RowAt>
__device__ __forceinline__ void dequantize_rows(uint32_t tile, const RowAt& row_at, int columns,
                                                int width, bool is_e5m2) {
  constexpr int kLanes = Layout.columns / kBytesAtOnce, kRows = Threads / kLanes;
  constexpr int kPasses = Layout.rows / kRows, kMost = 8;  // passes whose loads are in flight
  constexpr int kAtOnce = kPasses < kMost ? kPasses : kMost;
  static_assert(Threads % kLanes == 0 && Layout.rows % kRows == 0 && kPasses % kAtOnce == 0);
  const int own = int(thread_in_block()) / kLanes;
  const int column = int(thread_in_block()) % kLanes * kBytesAtOnce;
  const bool at_once = width == kBytesAtOnce && column + kBytesAtOnce <= columns;
#pragma unroll 1
  for (int first = own; first < Layout.rows; first += kAtOnce * kRows) {
    uint32_t read[kAtOnce][kBytesAtOnce / 4];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const uint8_t* const row = row_at(first + i * kRows);
      if (at_once) {
        load_global_if(row != nullptr, row + column, read[i]);
      } else {
        load_bytes(row + column, row == nullptr ? 0 : columns - column, read[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        uint32_t wide[4];
        dequantize<E>(read[i][2 * chunk], is_e5m2, wide[0], wide[1]);
        dequantize<E>(read[i][2 * chunk + 1], is_e5m2, wide[2], wide[3]);
        st_shared_b32x4(tile + uint32_t(Layout.chunk_offset(first + i * kRows, column + 8 * chunk)),
                        wide);
      }
    }
  }
}

}  // namespace fa3::ampere
