// SPDX-License-Identifier: Apache-2.0
//
// Lengths: one struct for sequences that are dense, packed (cu_seqlens), partly used (seqused) or
// padded on the left.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace fa3 {

// The rows of one sequence within its tensor. Dense: rows of batch entry b, begin = 0.
// Packed: rows of the whole tensor.
struct Rows {
  int64_t begin = 0;  // first row
  int64_t used = 0;   // rows that take part
  int64_t owned = 0;  // rows that belong to the sequence; [used, owned) is padding
};

// How long every sequence of one side (queries or keys) is.
struct Lengths {
  const int32_t* cu_seqlens = nullptr;    // (batch + 1), packed tensors only
  const int32_t* seqused = nullptr;       // (batch), optional
  const int32_t* left_padding = nullptr;  // (batch), optional, keys only: rows that do not count
  int64_t max = 0;                        // no sequence is longer
  int64_t total = 0;                      // rows of the tensor: batch * max if dense
  // A workspace query may leave the arrays null, so flags say it too:
  bool varlen = false;         // lengths may differ from max
  bool in_one_tensor = false;  // packed
  bool padded_left = false;

  // Whether every sequence has `max` rows, as far as the arrays tell that are here.
  FA3_HD constexpr bool alike() const {
    return cu_seqlens == nullptr && seqused == nullptr && left_padding == nullptr;
  }
  FA3_HD constexpr bool packed() const { return cu_seqlens != nullptr; }

  FA3_HD constexpr Rows rows_of(int64_t batch) const {
    Rows rows{0, max, max};
    if (cu_seqlens != nullptr) {
      rows.begin = cu_seqlens[batch];
      rows.owned = cu_seqlens[batch + 1] - rows.begin;
      rows.used = rows.owned;
    }
    if (seqused != nullptr && seqused[batch] < rows.used) rows.used = seqused[batch];
    if (left_padding != nullptr) {
      rows.begin += left_padding[batch];
      rows.used -= left_padding[batch];
    }
    return rows;
  }

  // Like rows_of(), for arrays that nobody has checked: whatever they hold, the rows lie within
  // the tensor, and at most max are used.
  FA3_HD constexpr Rows clamped_rows_of(int64_t batch) const {
    Rows rows = rows_of(batch);
    rows.begin = clamped(rows.begin, total);
    if (packed()) rows.owned = clamped(cu_seqlens[batch + 1], total) - rows.begin;
    if (rows.owned < 0) rows.owned = 0;
    rows.used = clamped(rows.used, rows.owned < max ? rows.owned : max);
    return rows;
  }

  // The rows of a packed tensor behind those of its `batch` sequences: no sequence owns them. Reads
  // no entry of the arrays that the batch does not have.
  FA3_HD constexpr Rows unowned_rows(int64_t batch) const {
    const Rows last = batch > 0 ? clamped_rows_of(batch - 1) : Rows{};
    const int64_t begin = last.begin + last.owned;
    return {begin, 0, total - begin};
  }

 private:
  static FA3_HD constexpr int64_t clamped(int64_t x, int64_t most) {
    return x < 0 ? 0 : x > most ? most : x;
  }
};

}  // namespace fa3
