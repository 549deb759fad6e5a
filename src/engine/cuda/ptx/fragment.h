// SPDX-License-Identifier: Apache-2.0
// Elements, and who holds what: the accumulator of a matrix product (mma.sync and wgmma alike), 16
// rows to a warp. Each thread has two rows, 8 apart, and in each 8 columns two neighbours; the four
// lanes of a quad share the rows. Packed in pairs, the same registers are the A operand of the next
// product, without moving anything; packed to e4m3 too, with the columns in another order. Plain
// constexpr: tested on the host.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/macros.h"

namespace fa3::cuda {

// The element types of Q, K, V and O that the kernels are written for; O is never e4m3.
enum class Element : unsigned char { kFp16, kBf16, kE4m3 };

FA3_HD constexpr int bytes_of(Element element) {
  return element == Element::kE4m3 ? 1 : 2;
}

// The integers that hold the bits of an element.
template <Element E>
using Bits = std::conditional_t<bytes_of(E) == 1, uint8_t, uint16_t>;

inline constexpr int kWarpSize = 32;
inline constexpr int kRowsPerWarp = 16;

inline constexpr int kRowsPerThread = 2;
inline constexpr int kRowDistance = 8;  // between a thread's two rows
inline constexpr int kQuadLanes = 4;    // lanes that share a row

// Element i of a thread's accumulator: column pair i / 4, row i / 2 % 2, neighbour i % 2.
FA3_HD constexpr int fragment_row_index(int i) {
  return i / 2 % 2;
}

// A thread's first row, in the rows of all warps from thread 0 on.
FA3_HD constexpr int fragment_row(int thread) {
  return thread / kWarpSize * kRowsPerWarp + thread % kWarpSize / kQuadLanes;
}

// Column of element i for lane 0 of a quad; other lanes add fragment_lane_column.
FA3_HD constexpr int fragment_column(int i) {
  return i / 4 * 8 + i % 2;
}

// The first elements of a thread's rows.
inline constexpr int kFirstElement[kRowsPerThread] = {0, 2};
static_assert(fragment_row_index(kFirstElement[1]) == 1 && fragment_column(kFirstElement[1]) == 0);

FA3_HD constexpr int fragment_lane_column(int thread) {
  return thread % kQuadLanes * 2;
}

// Packed to e4m3, four of an operand's registers hold 32 columns: the element that is byte `byte`
// of register `reg` (of the whole fragment).
FA3_HD constexpr int e4m3_element(int reg, int byte) {
  return reg / 2 * 8 + reg % 2 * 2 + byte / 2 * 4 + byte % 2;
}

// The hardware takes a lane's four bytes for neighbouring columns. So column `column` of the
// operand is this one of the accumulator, and the keys of V^T lie in the same order, within
// each 16.
FA3_HD constexpr int e4m3_key(int column) {
  const int lane = column % 16 / 4, pair = column / 2 % 2;
  return column / 16 * 16 + pair * 8 + lane * 2 + column % 2;
}

}  // namespace fa3::cuda
