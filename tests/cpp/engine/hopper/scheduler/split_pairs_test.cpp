// SPDX-License-Identifier: Apache-2.0
// Tiles of a causal mask in pairs of equal length, in equal ranges.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "engine/hopper/scheduler/right_splits.h"

namespace fa3::hopper {
namespace {

// Sequences of one length.
PairedKvSchedule paired(int batch, int queries, int keys, const MaskRuleOf<int>& mask, int block_n,
                        int num_packs, int pack_log2, int groups_log2) {
  const cuda::PackGqa pack{.log2 = pack_log2};
  SplitKvSchedule schedule{.sequences = {.lengths_q = {.max = queries, .total = batch * queries},
                                         .lengths_k = {.max = keys, .total = batch * keys},
                                         .batch = batch,
                                         .block_m = 128,
                                         .pack = pack,
                                         .num_packs = num_packs},
                           .mask = mask,
                           .block_n = block_n,
                           .most_m_blocks = std::max(1, (pack.rows(queries) + 127) / 128),
                           .groups_log2 = groups_log2};
  schedule.simple = schedule.is_simple();
  return {schedule, most_blocks_of_pair(schedule, schedule.sequence(0))};
}

int longest_range(const PairedKvSchedule& schedule, int num_blocks) {
  int longest = 0;
  for (int block = 0; block < num_blocks; ++block) {
    SplitIterator splits(schedule, ListedSequences<PairedKvSchedule>{schedule}, block, num_blocks);
    int blocks = 0;
    while (!splits.done()) {
      SequenceTiles s;
      TileSplit split{};
      if (splits.next(s, split)) blocks += split.blocks.count;
    }
    longest = std::max(longest, blocks);
  }
  return longest;
}

int visible_blocks(const SplitKvSchedule& schedule) {
  int all = 0;
  for (int b = 0; b < schedule.sequences.num_sequences(); ++b) {
    const SequenceTiles s = schedule.sequences.sequence(b);
    for (int m_block = 0; m_block < s.order.num_m_blocks; ++m_block) {
      all += schedule.blocks_of(s, m_block).count * s.order.num_packs;
    }
  }
  return all;
}

// One tile, an even and an odd number of them, a ragged last one; more queries than keys, of which
// some see nothing; no keys; pairs with more room than they need.
TEST(SplitKvPairs, put_every_block_into_one_split) {
  using Mask = MaskRuleOf<int>;
  for (const auto& [queries, keys] : {std::pair{100, 900},
                                      {128, 128},
                                      {700, 700},
                                      {768, 768},
                                      {640, 1500},
                                      {1000, 300},
                                      {500, 1},
                                      {300, 0}}) {
    for (const Mask& mask :
         {Mask{.right = 0}, Mask{.right = -200}, Mask{.left = 150, .right = 0}, Mask{}}) {
      for (const auto& [packs, pack_log2, groups_log2] :
           {std::array{1, 0, 0}, {3, 0, 0}, {4, 0, 2}, {2, 3, 1}, {2, 2, 0}}) {
        for (const int batch : {1, 3}) {
          for (const int block_n : {32, 80}) {
            PairedKvSchedule schedule =
                paired(batch, queries, keys, mask, block_n, packs, pack_log2, groups_log2);
            for (const int in_a_row : {1, 2, 5, 33}) {
              schedule.combine_by_tile = in_a_row > 5;
              const int num_blocks = in_a_row << groups_log2;
              ASSERT_NO_FATAL_FAILURE(expect_right_splits(schedule, num_blocks))
                  << queries << " queries, " << keys << " keys, blocks of " << block_n << ", "
                  << packs << " packs of " << (1 << pack_log2) << ", " << batch << " sequences, "
                  << num_blocks << " CTAs, window " << mask.left << ", " << mask.right;
              schedule.pair_blocks += 3;
            }
          }
        }
      }
    }
  }
}

// 4 heads of 4k tokens: 132 ranges of 16 blocks, where the longest tile has 32.
TEST(SplitKvPairs, make_ranges_of_causal_tiles_equal) {
  const auto expect_even = [](const PairedKvSchedule& schedule, int num_blocks, int more) {
    const int mean = (visible_blocks(schedule) + num_blocks - 1) / num_blocks;
    EXPECT_LE(longest_range(schedule, num_blocks), mean + more);
    EXPECT_GE(longest_range(schedule, num_blocks), mean);
  };
  const MaskRuleOf<int> causal{.right = 0};
  const PairedKvSchedule even = paired(1, 4096, 4096, causal, 128, 4, 0, 2);
  EXPECT_EQ(even.pair_blocks, 33);
  EXPECT_EQ(longest_range(even, 132), 16);
  EXPECT_EQ(longest_range({SplitKvSchedule(even)}, 132),
            32);  // as if all tiles were as long as the longest
  EXPECT_EQ(longest_range({SplitKvSchedule(even), 34}, 128), 17);
  for (const int block_n : {64, 80, 128}) {
    expect_even(paired(1, 4096 + 128, 4096 + 128, causal, block_n, 3, 0, 0), 132, 1);
    expect_even(paired(2, 3000, 3000, causal, block_n, 2, 0, 0), 132, 1);
    expect_even(paired(1, 4096, 4096, causal, block_n, 1, 2, 0), 132, 2);
    expect_even(paired(1, 2048, 5001, causal, block_n, 4, 0, 1), 132, 2);
  }
}

// Nearly as many blocks as a concatenation may have, whose number times two leaves an int.
TEST(SplitKvPairs, count_the_blocks_of_many_tiles_exactly) {
  const PairedKvSchedule schedule = paired(1, 1 << 20, 1 << 20, {.right = 0}, 64, 8, 0, 0);
  const int64_t blocks = schedule.length_of(schedule.sequence(0));
  EXPECT_EQ(blocks, int64_t{8} * 8192 * 8193);
  EXPECT_LT(blocks, SplitKvSchedule::kMostConcatenated);
  EXPECT_EQ(visible_blocks(schedule), blocks);
  constexpr int kBlocks = 132;
  const int64_t range = (blocks + kBlocks - 1) / kBlocks;
  int64_t found = 0;
  for (int block = 0; block < kBlocks; ++block) {
    SplitIterator splits(schedule, ListedSequences<PairedKvSchedule>{schedule}, block, kBlocks);
    int64_t mine = 0;
    for (int at = 0; !splits.done(); ++at) {
      SequenceTiles s;
      TileSplit split{};
      ASSERT_TRUE(splits.next(s, split));
      const bool is_whole = split.blocks.count == schedule.blocks_of(s, split.m_block).count;
      ASSERT_EQ(split.partial == TileSplit::kNotSplit, is_whole);
      ASSERT_TRUE(is_whole || at == 0 || splits.done()) << "a split in the middle of a range";
      mine += split.blocks.count;
    }
    found += mine;
    ASSERT_TRUE(mine == range || block == kBlocks - 1) << block;
  }
  EXPECT_EQ(found, blocks);
}

}  // namespace
}  // namespace fa3::hopper
