// SPDX-License-Identifier: Apache-2.0
// How an accumulator, packed in pairs, gets to shared memory: stmatrix stores four 8 x 8 matrices
// of a warp, each lane giving the address of one of their 32 rows. Four registers of a packed
// accumulator are such matrices: 16 rows by 16 columns. Plain constexpr: tested on the host.
#pragma once

#include "engine/cuda/ptx/fragment.h"

namespace fa3::hopper::tile {

using namespace cuda;

struct StoredPlace {
  int row;
  int column;
};

// The row that a thread gives the address of, from the warpgroup's first row and the 16 columns'
// first: matrices 0 and 1 are the upper and lower half of the first 8 columns, 2 and 3 of the last.
FA3_HD constexpr StoredPlace stored_place(int thread) {
  const int lane = thread % kWarpSize;
  return {thread / kWarpSize * kRowsPerWarp + lane % 16, lane / 16 * 8};
}

// stored_place() in a tile that holds the transpose: its rows are the accumulator's columns.
FA3_HD constexpr StoredPlace stored_place_transposed(int thread) {
  const int lane = thread % kWarpSize;
  return {lane / 16 * 8 + lane % 8, thread / kWarpSize * kRowsPerWarp + lane / 8 % 2 * 8};
}

}  // namespace fa3::hopper::tile
