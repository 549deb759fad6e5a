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

}  // namespace
}  // namespace fa3::test
