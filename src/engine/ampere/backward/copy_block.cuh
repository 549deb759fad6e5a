// SPDX-License-Identifier: Apache-2.0
// A block of neighbouring rows of a sequence to shared memory.
#pragma once

#include "engine/ampere/tile/copied_rows.h"
#include "engine/ampere/tile/copy_rows.cuh"

namespace fa3::ampere {

// The tensor's rows from `first` on; `left` of them exist.
template <TileLayout Layout, int Threads>
__device__ __forceinline__ void copy_block(uint32_t tile, const CopiedRows& from, int batch,
                                           int head, int first, int left) {
  if (from.in_chunks) {
    copy_chunks<Layout, Threads>(tile, from.tensor.at(batch, head, first), from.tensor.strides.row,
                                 left, from.tensor.columns);
  } else {
    const auto row_at = [&](int row) {
      return row < left ? from.tensor.at(batch, head, first + row) : nullptr;
    };
    copy_rows<Layout, Threads>(tile, row_at, from.tensor.columns, from.width);
  }
}

}  // namespace fa3::ampere
