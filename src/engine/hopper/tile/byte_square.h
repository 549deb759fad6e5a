// SPDX-License-Identifier: Apache-2.0
// How warps transpose a square of 64 x 64 or 128 x 128 bytes where it lies, in rows of as many
// bytes with swizzled chunks (layout.h): e4m3 values, keys of channels, become channels of keys.
//
// The square is made of parts of 16 x 16 bytes. ldmatrix.trans gives lane l of a part two
// registers, keys 0-7 and 8-15: in each the channels 2c and 2c + 1, c = l / 4, of two neighbouring
// keys. Joined by channel (prmt), they are four bytes of V^T's rows 2c and 2c + 1, in the order of
// cuda::e4m3_key(), and stmatrix puts them there. An instruction moves two parts that touch, and
// two instructions together, a step, what changes places. Plain constexpr: tested on the host.
// Next: transpose_square.cuh.
#pragma once

#include <cstdint>

#include "engine/hopper/tile/layout.h"

namespace fa3::hopper::tile {

inline constexpr int kSquare = 64;                      // rows, and bytes of a row
inline constexpr int kSquareBytes = kSquare * kSquare;  // to the next one of a slab

// Two parts: the first one's place, and whether the other lies below it or beside it.
struct PartPair {
  int row, column;
  bool below;

  FA3_HD constexpr PartPair transposed() const { return {column, row, !below}; }
  // Where the lane's own offset is apart from the square's address: what the two are XORed with.
  // Rows of parts that lie below each other begin at even ones.
  FA3_HD constexpr uint32_t bits(int square) const {
    return uint32_t(row * kChunkBytes * square + column * kChunkBytes);
  }
};

// Steps of a square, in blocks of 2 x 2 parts. Of each block on the diagonal one: its columns of
// parts become its rows.
FA3_HD constexpr int blocks_of_square(int square) {
  return square / (2 * kChunkBytes);
}
FA3_HD constexpr PartPair diagonal_pair(int block, int i) {
  return {2 * block, 2 * block + i, true};
}

// Two of each block above the diagonal: a column of parts changes places with a row of the block
// on the other side. Blocks at a distance, which is the XOR of their row and their column, number
// i.
FA3_HD constexpr int row_at(int distance, int i) {
  return distance == 1 ? 2 * i : i;  // of up to four rows
}
FA3_HD constexpr PartPair pair_above(int distance, int row, int column_of_parts) {
  return {2 * row, 2 * (row ^ distance) + column_of_parts, true};
}

// Lane l gives the address of row l % 8 of matrix l / 8. Matrices 0 and 1 are the halves of one
// part, 2 and 3 those of the other.
FA3_HD constexpr uint32_t lane_offset(int lane, int row, bool below, int square) {
  const int other = lane / 16, swizzle = square == kSquare ? row / 2 % 4 : row % 8;
  const int chunk = below ? swizzle : swizzle ^ other;
  const int part_row = below ? other : 0;
  return uint32_t((part_row * kChunkBytes + row) * square + chunk * kChunkBytes);
}

// Loads: a row of the matrix is a key.
FA3_HD constexpr uint32_t load_offset(int lane, bool below, int square) {
  return lane_offset(lane, lane % 16, below, square);
}

// Stores: a row is a channel. The even channels alone would meet in half of the banks, so the first
// matrix takes the even ones of channels 0-7 and the odd ones of 8-15, the second one the others.
FA3_HD constexpr uint32_t store_offset(int lane, bool below, int square) {
  const int pair = lane % 8, second = lane / 8 % 2;
  return lane_offset(lane, 2 * pair + (pair / 4 ^ second), below, square);
}

// What joins a part's two registers to the first matrix that a lane stores; XORed with
// kOtherMatrix, to the second: of each of the two keys the even or the odd channel.
inline constexpr uint32_t kEvenBytes = 0x6420, kOddBytes = 0x7531;
inline constexpr uint32_t kOtherMatrix = kEvenBytes ^ kOddBytes;
FA3_HD constexpr uint32_t join_selector(int lane) {
  return lane / 16 == 0 ? kEvenBytes : kOddBytes;
}

}  // namespace fa3::hopper::tile
