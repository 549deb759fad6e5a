// SPDX-License-Identifier: Apache-2.0
// A tensor whose rows are copied to shared memory (copy_rows.cuh).
#pragma once

#include "engine/cuda/tile/rows.h"

namespace fa3::ampere {

// By `width` bytes at once: 16, 8, 4 or 2, which its address and all strides are multiples of.
struct CopiedRows {
  cuda::RowTensor tensor;
  int width;
  bool in_chunks;  // width is 16, rows end with one, and all of a tile are one stride apart
};

}  // namespace fa3::ampere
