// SPDX-License-Identifier: Apache-2.0
// Which sequence owns a row of a tensor, for kernels that go through the tensor's rows. Lengths may
// hold anything. Plain constexpr, tested on the host.
#pragma once

#include "core/seqlen.h"

namespace fa3::cuda {

// The sequence of a tensor's row, and which of the sequence's rows it is.
struct OwnedRow {
  int64_t b;
  int64_t row;   // of the sequence
  int64_t from;  // of the tensor's entry
  bool used;
};

// The last sequence that begins at `row` or before.
FA3_HD constexpr int64_t sequence_of(const Lengths& lengths, int64_t batch, int64_t row) {
  int64_t first = 0, end = batch;
  while (end - first > 1) {
    const int64_t middle = (first + end) / 2;
    (lengths.cu_seqlens[middle] <= row ? first : end) = middle;
  }
  return first;
}

// Row `number` of all that the tensor of `batch` > 0 sequences has.
FA3_HD constexpr OwnedRow owned_row(const Lengths& lengths, int64_t batch, int64_t number) {
  const bool packed = lengths.packed();
  const int64_t b = packed ? sequence_of(lengths, batch, number) : number / lengths.max;
  const Rows rows = lengths.clamped_rows_of(b);
  const int64_t row = packed ? number - rows.begin : number % lengths.max;
  return {b, row, packed ? number : row, row >= 0 && row < rows.used};
}

}  // namespace fa3::cuda
