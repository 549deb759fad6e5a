// SPDX-License-Identifier: Apache-2.0
// How a warp transposes a square of 64 x 64 bytes where it lies, in rows of 64 bytes with swizzled
// chunks (layout.h): e4m3 values, 64 keys of 64 channels, become channels of keys.
//
// The square is made of 4 x 4 parts of 16 x 16 bytes. ldmatrix.trans gives lane l of a part two
// registers, keys 0-7 and 8-15: in each the channels 2c and 2c + 1, c = l / 4, of two neighbouring
// keys. Joined by channel (prmt), they are four bytes of V^T's rows 2c and 2c + 1, in the order of
// cuda::e4m3_key(), and stmatrix puts them there. An instruction moves two parts that touch, and
// two instructions together what changes places. Plain constexpr: tested on the host. Next:
// layout.h.
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
  // The address of a lane's chunk, from the square's plus the lane's own offset for such a pair.
  // Squares begin at multiples of 1024 bytes, so the two bits that the column changes are the
  // offset's.
  FA3_HD constexpr uint32_t address(uint32_t of_lane) const {
    return (of_lane ^ uint32_t(column * kChunkBytes)) + uint32_t(row * kChunkBytes * kSquare);
  }
};

inline constexpr int kSquareSteps = 4;
FA3_HD constexpr PartPair part_pair(int step, int i) {
  constexpr PartPair kPairs[kSquareSteps][2] = {{{0, 0, true}, {0, 1, true}},
                                                {{2, 2, true}, {2, 3, true}},
                                                {{0, 2, true}, {2, 0, false}},
                                                {{0, 3, true}, {3, 0, false}}};
  return kPairs[step][i];
}

// Lane l gives the address of row l % 8 of matrix l / 8. Matrices 0 and 1 are the halves of one
// part, 2 and 3 those of the other.
FA3_HD constexpr uint32_t lane_offset(int lane, int row, int swizzle, bool below) {
  const int other = lane / 16;
  const int chunk = below ? swizzle : swizzle ^ other;
  const int part_row = below ? other : 0;
  return uint32_t((part_row * kChunkBytes + row) * kSquare + chunk * kChunkBytes);
}

// Loads: a row of the matrix is a key.
FA3_HD constexpr uint32_t load_offset(int lane, bool below) {
  const int key = lane % 16;
  return lane_offset(lane, key, key / 2 % 4, below);
}

// Stores: a row is a channel. The even channels alone would meet in half of the banks, so the first
// matrix takes the even ones of channels 0-7 and the odd ones of 8-15, the second one the others.
FA3_HD constexpr uint32_t store_offset(int lane, bool below) {
  const int pair = lane % 8, second = lane / 8 % 2;
  const int channel = 2 * pair + (pair / 4 ^ second);
  return lane_offset(lane, channel, channel / 2 % 4, below);
}

// What joins a part's two registers to the first matrix that a lane stores; XORed with
// kOtherMatrix, to the second: of each of the two keys the even or the odd channel.
inline constexpr uint32_t kEvenBytes = 0x6420, kOddBytes = 0x7531;
inline constexpr uint32_t kOtherMatrix = kEvenBytes ^ kOddBytes;
FA3_HD constexpr uint32_t join_selector(int lane) {
  return lane / 16 == 0 ? kEvenBytes : kOddBytes;
}

}  // namespace fa3::hopper::tile
