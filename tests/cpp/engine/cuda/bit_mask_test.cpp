// SPDX-License-Identifier: Apache-2.0
//
// The bits of a block, or of half of it, on scores in registers, thread by thread: each pair is
// hidden by its own bit. And where the keys of a list lie.
#include "engine/cuda/mask/bit_mask.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

#include "engine/cuda/lists/block_list.h"

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

template <int Keys>
void expect_rows_hidden_by_bits() {
  const auto bits = random_bits();
  for (int first_key = 0; first_key < kMaskBlock; first_key += Keys) {
    for (int first_row : {0, kRows}) {
      for (int thread = 0; thread < kThreads; ++thread) {
        RowBitsOf<Keys / 32> mine;
        float scores[Keys / 2] = {};
        for (int r = 0; r < kRowsPerThread; ++r) {
          const int row = first_row + fragment_row(thread) + r * kRowDistance;
          const uint32_t* const at = bits.data() + offset_of_bits(row, first_key) / 4;
          std::copy(at, at + Keys / 32, mine.words[r]);
        }
        mine.hide(scores, thread);
        for (int i = 0; i < Keys / 2; ++i) {
          const int query = first_row + fragment_row(thread) + fragment_row_index(i) * kRowDistance;
          const int key = first_key + fragment_column(i) + fragment_lane_column(thread);
          ASSERT_EQ(scores[i] == 0, is_seen(bits, query, key)) << query << " " << key;
        }
      }
    }
  }
}

TEST(BitMask, of_rows_of_queries_hides_each_pair_by_its_bit) {
  expect_rows_hidden_by_bits<kMaskBlock / 2>();
  expect_rows_hidden_by_bits<kMaskBlock>();
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

TEST(ListedKeys, lie_in_their_blocks_one_behind_the_other) {
  constexpr ListedBlock kBlocks[] = {{.block = 3}, {.block = 0}, {.block = 7}};
  EXPECT_EQ(listed_key(kBlocks, 0), 384);
  EXPECT_EQ(listed_key(kBlocks, 64), 448);
  EXPECT_EQ(listed_key(kBlocks, 127), 511);
  EXPECT_EQ(listed_key(kBlocks, 128), 0);
  EXPECT_EQ(listed_key(kBlocks, 300), 7 * 128 + 44);
}

}  // namespace
}  // namespace fa3::cuda
