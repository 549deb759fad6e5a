// SPDX-License-Identifier: Apache-2.0
//
// The bits of a block on scores in registers, thread by thread: each pair is hidden by its own bit.
#include "engine/cuda/mask/bit_mask.cuh"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace fa3::cuda {
namespace {

constexpr int kThreads = 128, kRows = 64;

std::array<uint32_t, kMaskBlockWords> random_bits() {
  std::mt19937 random(7);
  std::array<uint32_t, kMaskBlockWords> bits;
  for (uint32_t& word : bits) word = uint32_t(random());
  return bits;
}

bool is_seen(const std::array<uint32_t, kMaskBlockWords>& bits, int query, int key) {
  return bits[size_t(query * kMaskRowWords + key / 32)] >> (key % 32) & 1;
}

TEST(BitMask, of_rows_of_queries_hides_each_pair_by_its_bit) {
  const auto bits = random_bits();
  for (int first_row : {0, kRows}) {
    for (int thread = 0; thread < kThreads; ++thread) {
      RowBits mine;
      float scores[kMaskBlock / 2] = {};
      for (int r = 0; r < kRowsPerThread; ++r) {
        const int row = first_row + fragment_row(thread) + r * kRowDistance;
        for (int w = 0; w < kMaskRowWords; ++w) {
          mine.words[r][w] = bits[size_t(row * kMaskRowWords + w)];
        }
      }
      mine.hide(scores, thread);
      for (int i = 0; i < kMaskBlock / 2; ++i) {
        const int query = first_row + fragment_row(thread) + fragment_row_index(i) * kRowDistance;
        const int key = fragment_column(i) + fragment_lane_column(thread);
        ASSERT_EQ(scores[i] == 0, is_seen(bits, query, key)) << query << " " << key;
      }
    }
  }
}

template <int Queries>
void expect_hidden_by_bits() {
  const auto bits = random_bits();
  for (int first_query = 0; first_query < kMaskBlock; first_query += Queries) {
    for (int first_key : {0, kRows}) {
      for (int thread = 0; thread < kThreads; ++thread) {
        float scores[Queries / 2] = {};
        hide_transposed(scores, bits.data() + first_query * kMaskRowWords, first_key, thread);
        for (int i = 0; i < Queries / 2; ++i) {
          const int key = first_key + fragment_row(thread) + fragment_row_index(i) * kRowDistance;
          const int query = first_query + fragment_column(i) + fragment_lane_column(thread);
          ASSERT_EQ(scores[i] == 0, is_seen(bits, query, key)) << query << " " << key;
        }
      }
    }
  }
}

TEST(BitMask, of_rows_of_keys_hides_each_pair_by_its_bit) {
  expect_hidden_by_bits<64>();
  expect_hidden_by_bits<128>();
}

}  // namespace
}  // namespace fa3::cuda
