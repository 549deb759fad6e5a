// SPDX-License-Identifier: Apache-2.0
// Where the rows of a tile lie in global memory. The tile's rows count queries of one sequence, heads
// packed (head_pack.h); a tensor is reached by batch, head and row.
#pragma once

#include <cstdint>

#include "engine/cuda/head_pack.h"

namespace fa3::cuda {

// Between neighbours, in elements.
struct Strides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;

  FA3_HD constexpr int64_t offset(int batch_entry, int head_number, int row_number) const {
    return batch_entry * batch + head_number * head + row_number * row;
  }
};

// A (batch, row, head, column) tensor of 16-bit elements with unit stride along columns.
struct RowTensor {
  void* data = nullptr;
  Strides strides;
  int columns = 0;
};

// The log-sum-exp: a float for each (batch, head, row).
struct RowFloats {
  float* data = nullptr;  // null: not wanted
  Strides strides;
};

// What a forward kernel writes. The pack tells how rows of a tile are rows of these.
struct ForwardOutput {
  RowTensor o;
  RowFloats lse;
  HeadPack pack;
  bool some_rows_see_no_key;
};

// The query rows of one sequence: q_begin, where it starts in the tensors, and how many there are.
struct QueryRows {
  int batch;
  int pack;  // number of the head pack
  int begin;
  int count;
};

}  // namespace fa3::cuda
