// SPDX-License-Identifier: Apache-2.0
//
// Which sequence owns a row, against the sequences row by row.
#include "engine/cuda/tile/row_owner.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace fa3::cuda {
namespace {

// Each used row of the sequences is found as theirs, and no other row is used.
void expect_right(const Lengths& lengths, int64_t batch) {
  int64_t used = 0, found_used = 0;
  for (int64_t b = 0; b < batch; ++b) {
    const Rows rows = lengths.clamped_rows_of(b);
    used += rows.used;
    for (int64_t row = 0; row < rows.used; ++row) {
      const int64_t from = rows.begin + row;
      const OwnedRow found =
          owned_row(lengths, batch, lengths.packed() ? from : b * lengths.max + row);
      EXPECT_TRUE(found.used);
      EXPECT_EQ(found.b, b);
      EXPECT_EQ(found.row, row);
      EXPECT_EQ(found.from, from);
    }
  }
  for (int64_t number = 0; number < lengths.total; ++number) {
    found_used += owned_row(lengths, batch, number).used;
  }
  EXPECT_EQ(found_used, used);
}

TEST(RowOwner, is_the_sequence_whose_rows_it_is_among) {
  const std::vector<int32_t> ends = {0, 3, 3, 3, 10, 10, 74, 75, 75};
  const std::vector<int32_t> used = {2, 0, 0, 7, 0, 80, 0, 0};
  const Lengths packed{.cu_seqlens = ends.data(), .max = 64, .total = 80, .varlen = true};
  expect_right(packed, 8);
  Lengths some = packed;
  some.seqused = used.data();
  expect_right(some, 8);
  expect_right({.cu_seqlens = ends.data(), .max = 3, .total = 5, .varlen = true}, 1);
}

TEST(RowOwner, is_the_entry_of_tensors_with_one_for_each_sequence) {
  const std::vector<int32_t> used = {5, 0, 9, -3};
  expect_right({.max = 7, .total = 28}, 4);
  expect_right({.seqused = used.data(), .max = 7, .total = 28, .varlen = true}, 4);
}

// What it finds lies within the tensor.
TEST(RowOwner, stays_within_the_tensor_whatever_the_lengths_are) {
  constexpr int32_t kLeast = std::numeric_limits<int32_t>::min();
  const std::vector<int32_t> ends = {7, kLeast, 900, 4, std::numeric_limits<int32_t>::max()};
  const Lengths lengths{.cu_seqlens = ends.data(), .max = 6, .total = 20, .varlen = true};
  for (int64_t number = 0; number < lengths.total; ++number) {
    const OwnedRow found = owned_row(lengths, 4, number);
    EXPECT_EQ(found.from, number);
    EXPECT_TRUE(found.b >= 0 && found.b < 4);
    if (found.used) {
      EXPECT_TRUE(found.row >= 0 && found.row < lengths.max);
    }
  }
}

}  // namespace
}  // namespace fa3::cuda
