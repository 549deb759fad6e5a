// SPDX-License-Identifier: Apache-2.0
#include "core/seqlen.h"

#include <gtest/gtest.h>

namespace fa3::test {
namespace {

TEST(Lengths, dense_sequences_own_and_use_all_rows) {
  const Lengths lengths{.max = 9, .total = 27};
  EXPECT_FALSE(lengths.packed());
  for (int64_t b = 0; b < 3; ++b) {
    EXPECT_EQ(lengths.rows_of(b).begin, 0);
    EXPECT_EQ(lengths.rows_of(b).used, 9);
    EXPECT_EQ(lengths.rows_of(b).owned, 9);
  }
}

TEST(Lengths, seqused_shortens_dense_sequences) {
  const int32_t used[] = {0, 9, 4};
  const Lengths lengths{.seqused = used, .max = 9, .total = 27};
  for (int64_t b = 0; b < 3; ++b) {
    EXPECT_EQ(lengths.rows_of(b).used, used[b]);
    EXPECT_EQ(lengths.rows_of(b).owned, 9);
  }
}

TEST(Lengths, packed_sequences_begin_where_the_previous_one_ends) {
  const int32_t starts[] = {0, 5, 5, 12};
  const Lengths lengths{.cu_seqlens = starts, .max = 7, .total = 15};
  EXPECT_TRUE(lengths.packed());
  for (int64_t b = 0; b < 3; ++b) {
    EXPECT_EQ(lengths.rows_of(b).begin, starts[b]);
    EXPECT_EQ(lengths.rows_of(b).owned, starts[b + 1] - starts[b]);
    EXPECT_EQ(lengths.rows_of(b).used, lengths.rows_of(b).owned);
  }
}

TEST(Lengths, seqused_never_reaches_into_the_next_packed_sequence) {
  const int32_t starts[] = {0, 5, 12};
  const int32_t used[] = {8, 3};
  const Lengths lengths{.cu_seqlens = starts, .seqused = used, .max = 7, .total = 12};
  EXPECT_EQ(lengths.rows_of(0).used, 5);
  EXPECT_EQ(lengths.rows_of(1).used, 3);
  EXPECT_EQ(lengths.rows_of(1).owned, 7);
}

TEST(Lengths, clamped_ones_lie_within_the_tensor_and_the_bound_whatever_the_arrays_hold) {
  const int32_t starts[] = {0, 5, 12, -3, 100, 7};
  const int32_t used[] = {8, -1, 1 << 30, 2, 3};
  const Lengths lengths{.cu_seqlens = starts, .seqused = used, .max = 4, .total = 20};
  for (int64_t b = 0; b < 5; ++b) {
    const Rows rows = lengths.clamped_rows_of(b);
    EXPECT_TRUE(rows.begin >= 0 && rows.owned >= 0 && rows.begin + rows.owned <= 20) << b;
    EXPECT_TRUE(rows.used >= 0 && rows.used <= 4 && rows.used <= rows.owned) << b;
  }
  EXPECT_EQ(lengths.clamped_rows_of(0).owned, 5);
  EXPECT_EQ(lengths.clamped_rows_of(0).used, 4);
  const Lengths dense{.seqused = used, .max = 6, .total = 30};
  EXPECT_EQ(dense.clamped_rows_of(0).used, 6);
  EXPECT_EQ(dense.clamped_rows_of(1).used, 0);
  EXPECT_EQ(dense.clamped_rows_of(3).used, 2);
  EXPECT_EQ(dense.clamped_rows_of(3).owned, 6);
}

// Whatever lies beside the arrays.
TEST(Lengths, of_a_batch_say_which_rows_no_sequence_owns) {
  const int32_t starts[] = {-77, 0, 3, 8, 1 << 30};
  const Lengths lengths{.cu_seqlens = starts + 1, .max = 5, .total = 11};
  for (const auto& [batch, begin] : {std::pair{0, 0}, {1, 3}, {2, 8}}) {
    const Rows rows = lengths.unowned_rows(batch);
    EXPECT_EQ(rows.begin, begin);
    EXPECT_EQ(rows.owned, 11 - begin);
    EXPECT_EQ(rows.used, 0);
  }
}

}  // namespace
}  // namespace fa3::test
