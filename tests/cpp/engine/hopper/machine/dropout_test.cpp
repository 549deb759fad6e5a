// SPDX-License-Identifier: Apache-2.0
//
// The draws that the lanes of a warp make for their scores, against the rule's own
// (core/dropout.h).
#include <gtest/gtest.h>

#include "engine/cuda/dropout.cuh"
#include "many_orders.h"

namespace fa3::cuda {
namespace {

constexpr int kSequence = 3, kHead = 5, kFirstRow = 176, kFirstKey = 4096;
const DropoutParams kParams = DropoutParams::of(
    {.threshold = dropout_threshold(0.3f), .seed = 0x1234567890abcdef, .offset = 42});

bool keeps(int query, int key) {
  const DropoutHead head = dropout_head(kParams.dropout.call_key(), kSequence, kHead);
  return DropoutRow(kParams.dropout, head, query).keeps(key);
}

int lane() {
  return int(threadIdx.x) % kWarpSize;
}

TEST(DropoutOfAWarp, drops_the_scores_of_its_queries) {
  machine::expect_right(2, {}, [] {
    constexpr int kKeys = 48, kBlock = 32;
    QueryRowDropout dropout(kParams);
    dropout.set_tile(kSequence, kHead, kFirstRow, kFirstKey);
    float p[kKeys / 2];
    std::fill_n(p, kKeys / 2, 1.0f);
    dropout.drop(p, kBlock);
    for (int i = 0; i < kKeys / 2; ++i) {
      const int query = kFirstRow + fragment_row(lane()) + fragment_row_index(i) * kRowDistance;
      const int key = kFirstKey + kBlock + fragment_column(i) + fragment_lane_column(lane());
      ASSERT_EQ(p[i] != 0, keeps(query, key)) << query << ", " << key;
    }
  });
}

TEST(DropoutOfAWarp, signs_the_scores_of_its_keys) {
  machine::expect_right(2, {}, [] {
    KeyRowDropout dropout(kParams, kFirstKey);
    dropout.set_head(kSequence, kHead);
    uint32_t sign[kDraws];
    dropout.signs(sign, kFirstRow);
    for (int i = 0; i < kDraws; ++i) {
      const int key = kFirstKey + fragment_row(lane()) + fragment_row_index(i) * kRowDistance;
      const int query = kFirstRow + fragment_column(i) + fragment_lane_column(lane());
      ASSERT_EQ(sign[i] == 0, keeps(query, key)) << query << ", " << key;
    }
  });
}

}  // namespace
}  // namespace fa3::cuda
