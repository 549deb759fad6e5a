// SPDX-License-Identifier: Apache-2.0
//
// The draws that the lanes of a warp make for their weights, against the rule's own
// (core/dropout/dropout.h).
#include <gtest/gtest.h>

#include "engine/cuda/dropout/dropout.cuh"
#include "many_orders.h"

namespace fa3::cuda {
namespace {

constexpr int kSequence = 3, kHead = 5, kFirstRow = 176, kFirstKey = 4096;
constexpr int kBeforeSequence = 7, kBeforeHead = 11, kBeforeRow = 160, kBeforeKey = 1024;
const DropoutParams kParams =
    DropoutParams::of({.threshold = dropout_threshold(0.3f),
                       .seed = 0x1234567890abcdef,
                       .offset = 42,
                       .origin = {.sequence = kBeforeSequence,
                                  .head = kBeforeHead,
                                  .query_word = dropout_query_word(kBeforeRow),
                                  .key_word = dropout_key_word(kBeforeKey)}});

bool keeps(int query, int key) {
  Dropout whole = kParams.dropout;
  whole.origin = {};
  const DropoutHead head =
      whole.head(whole.call_key(), kBeforeSequence + kSequence, kBeforeHead + kHead);
  return DropoutRow(whole, head, kBeforeRow + query).keeps(kBeforeKey + key);
}

int lane() {
  return int(threadIdx.x) % kWarpSize;
}

TEST(DropoutOfAWarp, drops_the_weights_of_its_queries) {
  machine::expect_right(2, {}, [] {
    constexpr int kKeys = 128, kBlock = 64;
    QueryRowDropout dropout(kParams);
    dropout.set_tile(kSequence, kHead, kFirstRow);
    PhiloxWords words[kKeys / kDropoutKeys];
    dropout.call(words, kFirstKey + kBlock);
    uint32_t p[kKeys / 16][4];
    std::fill_n(&p[0][0], kKeys / 4, ~0u);
    QueryRowDropout::drop(p, words, kParams);
    for (int i = 0; i < kKeys / 2; ++i) {
      const int query = kFirstRow + fragment_row(lane()) + fragment_row_index(i) * kRowDistance;
      const int key = kFirstKey + kBlock + fragment_column(i) + fragment_lane_column(lane());
      const uint32_t half = p[i / 8][i / 2 % 4] >> (16 * (i % 2)) & 0xffff;
      ASSERT_EQ(half, keeps(query, key) ? 0xffffu : 0u) << query << ", " << key;
    }
  });
}

// Draws as bits, for a warpgroup of whose keys each warp takes 16.
TEST(DropoutOfAWarp, has_a_bit_for_each_draw) {
  machine::expect_right(2, {}, [] {
    const KeyRowDropout dropout(kParams, kFirstKey);
    const uint32_t bits = dropout.dropped_bits(kSequence, kHead, kFirstRow);
    for (int i = 0; i < kDropoutKeys / 2; ++i) {
      const int query = kFirstRow + fragment_row(lane()) + fragment_row_index(i) * kRowDistance;
      const int key = kFirstKey + fragment_column(i) + fragment_lane_column(lane());
      const int bit = fragment_column(i) / 8 * 2 + fragment_row_index(i) + 16 * (i % 2);
      ASSERT_EQ(bits >> bit & 1, keeps(query, key) ? 0u : 1u) << query << ", " << key;
    }
  });
}

// Register `reg` of a fragment with keys as rows: key 16 w + 8 (reg % 2) + g, query 8 (reg / 2) +
// c.
TEST(DropoutOfAWarp, takes_the_signs_of_a_register_from_their_bits) {
  for (int warp = 0; warp < 4; ++warp) {
    for (int reg = 0; reg < 4; ++reg) {
      const int word = dropout_word_of(8 * (reg / 2), 16 * warp + 8 * (reg % 2));
      EXPECT_EQ(KeyRowDropout::signs(0x10000u << word, warp, reg), 0x80000000u);
      EXPECT_EQ(KeyRowDropout::signs(1u << word, warp, reg), 0x8000u);
      EXPECT_EQ(KeyRowDropout::signs(~(0x10001u << word), warp, reg), 0u);
    }
  }
}

}  // namespace
}  // namespace fa3::cuda
