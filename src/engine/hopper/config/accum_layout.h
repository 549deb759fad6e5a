// SPDX-License-Identifier: Apache-2.0
// How dQ is summed in global memory (FlashAttention-3's dq_accum): float32, block of rows by block,
// in the order in which the accumulators of a warpgroup hold it. dK and dV lie like this too where
// CTAs share a key block. A block comes in parts of 64 rows and one slab of columns; in a part,
// thread t has its 4-element group g at (g * 128 + t) * 4, so that a warp adds 512 consecutive
// bytes. A block of 48 rows, which are no accumulator's, lies transposed: a part's accumulators
// have its 64 columns as rows. Only the postprocess kernel turns this into rows. Plain constexpr,
// tested on the host.
#pragma once

#include "engine/hopper/config/sm90.h"
#include "engine/hopper/tile/layout.h"

namespace fa3::hopper {

struct AccumLayout {
  int block_rows;
  int head_dim;

  // A group: two neighbouring columns of a thread's two rows, 4 consecutive accumulators; of a
  // transposed part two neighbouring rows of its two columns.
  static constexpr int kGroup = 4;
  static constexpr int kColumnsPerGroup = 8;  // the quad's

  FA3_HD constexpr bool transposed() const { return block_rows % kRowsPerWarpgroup != 0; }
  FA3_HD constexpr int rows() const { return transposed() ? block_rows : kRowsPerWarpgroup; }
  FA3_HD constexpr int columns() const {
    return tile::TileLayout{block_rows, head_dim}.slab_columns();
  }
  FA3_HD constexpr int column_parts() const { return head_dim / columns(); }
  FA3_HD constexpr int parts() const { return block_rows / rows() * column_parts(); }
  FA3_HD constexpr int part_floats() const { return rows() * columns(); }
  FA3_HD constexpr int floats() const { return part_floats() / kWarpgroupSize; }  // a thread's
  FA3_HD constexpr int groups() const { return floats() / kGroup; }
  FA3_HD constexpr int block_floats() const { return block_rows * head_dim; }

  FA3_HD constexpr int first_row(int part) const {
    return part / column_parts() * kRowsPerWarpgroup;
  }
  // The first of the 16 rows that a thread's warp has.
  FA3_HD constexpr int first_row_of_warp(int part, int thread) const {
    return first_row(part) + thread % kWarpgroupSize / kWarpSize * kRowsPerWarp;
  }
  FA3_HD constexpr int first_column(int part) const { return part % column_parts() * columns(); }

  // A thread's group in the chunk, in floats.
  FA3_HD constexpr int offset(int part, int group, int thread) const {
    return part * part_floats() + (group * kWarpgroupSize + thread) * kGroup;
  }
};

}  // namespace fa3::hopper
