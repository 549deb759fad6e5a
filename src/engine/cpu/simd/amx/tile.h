// SPDX-License-Identifier: Apache-2.0
//
// AMX: eight tile registers of 16 rows x 64 bytes, and one function an instruction. A tile holds
// (16, 16) floats, (16, 32) bfloat16 of a left factor, or (32, 16) bfloat16 of a right factor,
// whose rows are interleaved by twos: 32-bit element (i, j) is the pair of elements (2 i, j), (2 i
// + 1, j).
//
// With FA3_EMULATE_TILES the functions work on arrays instead, and round as the instructions do, so
// that CPUs without AMX test what is built on them. Next: tile_products.h.
#pragma once

#include "engine/cpu/simd/vector/convert.h"

namespace fa3::cpu::FA3_ISA {

constexpr int64_t kTileSide = 16;              // rows, and 32-bit elements of a row
constexpr int64_t kTileDepth = 2 * kTileSide;  // bfloat16 of a row

#if defined(FA3_EMULATE_TILES)

struct EmulatedTile {
  uint32_t elements[kTileSide][kTileSide];
};
inline thread_local EmulatedTile g_tiles[8];

FA3_INLINE void configure_tiles() {
  __builtin_memset(g_tiles, 0, sizeof(g_tiles));
}

FA3_INLINE void release_tiles() {
  __builtin_memset(g_tiles, 0xff, sizeof(g_tiles));
}

template <int kTile>
FA3_INLINE void tile_zero() {
  __builtin_memset(&g_tiles[kTile], 0, sizeof(EmulatedTile));
}

template <int kTile>
FA3_INLINE void tile_load(const void* from, int64_t row_bytes) {
  for (int64_t i = 0; i < kTileSide; ++i) {
    __builtin_memcpy(g_tiles[kTile].elements[i], static_cast<const char*>(from) + i * row_bytes,
                     64);
  }
}

template <int kTile>
FA3_INLINE void tile_store(void* to, int64_t row_bytes) {
  for (int64_t i = 0; i < kTileSide; ++i) {
    __builtin_memcpy(static_cast<char*>(to) + i * row_bytes, g_tiles[kTile].elements[i], 64);
  }
}

// Subnormal numbers count as zero.
FA3_INLINE V flushed(V v) {
  const VBits is_normal = (VBits)(((VBits)v & 0x7f800000u) != 0u);
  return (V)((VBits)v & (is_normal | 0x80000000u));
}

// Even and odd elements of the sum in chains of their own, added at the end.
template <int kSum, int kLeft, int kRight>
static void tile_multiply_add() {
  for (int64_t i = 0; i < kTileSide; ++i) {
    V even = {}, odd = {};
    for (int64_t k = 0; k < kTileSide; ++k) {
      const VBits left = VBits{} + g_tiles[kLeft].elements[i][k];
      VBits right;
      __builtin_memcpy(&right, g_tiles[kRight].elements[k], sizeof(right));
      even = flushed((V)_mm512_fmadd_ps((__m512)flushed((V)(left << 16)),
                                        (__m512)flushed((V)(right << 16)), (__m512)even));
      odd = flushed((V)_mm512_fmadd_ps((__m512)flushed((V)(left & 0xffff0000u)),
                                       (__m512)flushed((V)(right & 0xffff0000u)), (__m512)odd));
    }
    V sum;
    __builtin_memcpy(&sum, g_tiles[kSum].elements[i], sizeof(sum));
    sum = flushed(flushed(sum) + flushed(even + odd));
    __builtin_memcpy(g_tiles[kSum].elements[i], &sum, sizeof(sum));
  }
}

#else

// All eight tiles at their full size. Until then, and after release_tiles, tile instructions fault.
FA3_INLINE void configure_tiles() {
  struct alignas(64) Config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  Config config = {.palette = 1};
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = 64;
    config.rows[tile] = kTileSide;
  }
  asm volatile("ldtilecfg %0" : : "m"(config));
}

// Tiles in use would have to be saved whenever the system switches threads.
FA3_INLINE void release_tiles() {
  asm volatile("tilerelease");
}

template <int kTile>
FA3_INLINE void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

template <int kTile>
FA3_INLINE void tile_load(const void* from, int64_t row_bytes) {
  asm volatile("tileloadd (%1,%2), %%tmm%c0" : : "i"(kTile), "r"(from), "r"(row_bytes) : "memory");
}

template <int kTile>
FA3_INLINE void tile_store(void* to, int64_t row_bytes) {
  asm volatile("tilestored %%tmm%c0, (%1,%2)" : : "i"(kTile), "r"(to), "r"(row_bytes) : "memory");
}

// kSum += kLeft kRight. Takes subnormal numbers for zero.
template <int kSum, int kLeft, int kRight>
FA3_INLINE void tile_multiply_add() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSum), "i"(kLeft), "i"(kRight));
}

#endif

// The products of two tiles of rows with two tiles of columns, as many as the registers allow,
// where each operand is used twice; or of one with either. Tiles 0 to 3 are the sums, row tile by
// row tile, 4 and 5 the left factors, 6 and 7 the right ones.
constexpr int64_t kTileRows = 2 * kTileSide;

template <int kColumnTiles, int kRowTiles = 2>
FA3_INLINE void zero_sums() {
  tile_zero<0>();
  if constexpr (kColumnTiles == 2) tile_zero<1>();
  if constexpr (kRowTiles == 2) tile_zero<2>();
  if constexpr (kColumnTiles == 2 && kRowTiles == 2) tile_zero<3>();
}

template <int kColumnTiles>
FA3_INLINE void load_sums(const float* from, int64_t row_floats) {
  const int64_t row_bytes = row_floats * 4;
  tile_load<0>(from, row_bytes);
  tile_load<2>(from + kTileSide * row_floats, row_bytes);
  if constexpr (kColumnTiles == 2) {
    tile_load<1>(from + kTileSide, row_bytes);
    tile_load<3>(from + kTileSide * row_floats + kTileSide, row_bytes);
  }
}

template <int kColumnTiles, int kRowTiles = 2>
FA3_INLINE void store_sums(float* to, int64_t row_floats) {
  const int64_t row_bytes = row_floats * 4;
  float* const second_rows = to + kTileSide * row_floats;
  tile_store<0>(to, row_bytes);
  if constexpr (kColumnTiles == 2) tile_store<1>(to + kTileSide, row_bytes);
  if constexpr (kRowTiles == 2) tile_store<2>(second_rows, row_bytes);
  if constexpr (kColumnTiles == 2 && kRowTiles == 2) {
    tile_store<3>(second_rows + kTileSide, row_bytes);
  }
}

// Rows of a left factor, and the distance between them. Factors are floats that are pairs of
// bfloat16.
struct LeftRows {
  const float* data;
  int64_t row_floats;
};

// Column tiles of a right factor, each with its rows (of the sum) one after the other, so that the
// hardware prefetches them, and the distance between them.
struct RightColumns {
  const float* data;
  int64_t tile_floats;
};

// sums += left (rows, 32) right (32, columns).
template <int kColumnTiles, int kRowTiles = 2>
FA3_INLINE void multiply_tiles(LeftRows left, RightColumns right) {
  constexpr int64_t kRowBytes = kTileSide * 4;
  tile_load<4>(left.data, left.row_floats * 4);
  tile_load<6>(right.data, kRowBytes);
  tile_multiply_add<0, 4, 6>();
  if constexpr (kRowTiles == 2) {
    tile_load<5>(left.data + kTileSide * left.row_floats, left.row_floats * 4);
    tile_multiply_add<2, 5, 6>();
  }
  if constexpr (kColumnTiles == 2) {
    tile_load<7>(right.data + right.tile_floats, kRowBytes);
    tile_multiply_add<1, 4, 7>();
  }
  if constexpr (kColumnTiles == 2 && kRowTiles == 2) tile_multiply_add<3, 5, 7>();
}

// Multiplies tiles over `pairs` pairs of bfloat16, a multiple of 16.
template <int kColumnTiles, int kRowTiles = 2>
FA3_INLINE void multiply_pairs(LeftRows left, RightColumns right, int64_t pairs) {
  for (int64_t i = 0; i < pairs; i += kTileSide) {
    multiply_tiles<kColumnTiles, kRowTiles>({left.data + i, left.row_floats},
                                            {right.data + i * kTileSide, right.tile_floats});
  }
}

template <int kColumnTiles>
FA3_INLINE void add_tile_columns(LeftRows left, RightColumns right, int64_t pairs, float* to,
                                 int64_t columns) {
  load_sums<kColumnTiles>(to, columns);
  multiply_pairs<kColumnTiles>(left, right, pairs);
  store_sums<kColumnTiles>(to, columns);
}

// to (32 rows, columns) += left (32 rows, length) right (length, columns).
static void add_tile_product(LeftRows left, RightColumns right, int64_t length, float* to,
                             int64_t columns) {
  const int64_t pairs = (length + kTileDepth - 1) / kTileDepth * kTileSide;
  for (int64_t column = 0; column < columns; column += 2 * kTileSide) {
    const RightColumns tiles = {right.data + column / kTileSide * right.tile_floats,
                                right.tile_floats};
    if (column + kTileSide < columns) {
      add_tile_columns<2>(left, tiles, pairs, to + column, columns);
    } else {
      add_tile_columns<1>(left, tiles, pairs, to + column, columns);
    }
  }
}

}  // namespace fa3::cpu::FA3_ISA
