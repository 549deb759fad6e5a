// SPDX-License-Identifier: Apache-2.0
// The backward's order of key blocks: each comes once, the longest of a section first.
#include "engine/hopper/scheduler/key_block_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace fa3::hopper {
namespace {

TEST(KeyBlockOrder, every_tile_comes_once_and_the_longest_of_a_section_first) {
  for (const int section : {1, 2, 3, 5, 12}) {
    for (const int last : {0, 1, 2, 3}) {  // full sections before the last one
      if (last * section >= 12) continue;
      const KeyBlockOrder order{7, 4, 3, section, last * section, false};
      std::set<std::tuple<int, int, int>> seen;
      int last_n = 0, last_section = 0;
      for (int tile = 0; tile < order.num_tiles(); ++tile) {
        const KeyBlockIndex at = order.at(tile);
        EXPECT_TRUE(at.n_block < 7 && at.kv_head < 4 && at.batch < 3);
        seen.insert({at.n_block, at.kv_head, at.batch});
        const int section_of_tile = std::min((at.batch * 4 + at.kv_head) / section, last);
        EXPECT_TRUE(section_of_tile > last_section || at.n_block >= last_n);
        EXPECT_GE(section_of_tile, last_section);
        last_n = at.n_block;
        last_section = section_of_tile;
      }
      EXPECT_EQ(seen.size(), size_t(order.num_tiles()));
    }
  }
}

TEST(KeyBlockOrder, splits_share_out_the_steps_of_a_key_block) {
  for (const int splits : {1, 2, 5, 7, 255}) {
    const KeyBlockOrder order{.num_n_blocks = 1,
                              .num_kv_heads = 1,
                              .num_batches = 1,
                              .section_heads = 1,
                              .last_section = 0,
                              .last_keys_first = false,
                              .step_splits = static_cast<unsigned char>(splits)};
    for (const int steps : {0, 1, 6, 7, 8, 35, 254, 1000, 1 << 28}) {
      int next = 0;
      for (int split = 0; split < splits; ++split) {
        const KeyBlockOrder::Share share = order.share_of(steps, split);
        EXPECT_EQ(share.first, next);
        EXPECT_GE(share.count, 0);
        EXPECT_LE(share.count, (steps + splits - 1) / splits);
        next += share.count;
      }
      EXPECT_EQ(next, steps) << splits;
    }
  }
}

TEST(KeyBlockOrder, every_head_split_of_a_key_block_comes_once) {
  for (const int splits : {2, 3}) {
    for (const int section : {1, 2, 5}) {
      const KeyBlockOrder order{7,
                                4,
                                3,
                                section,
                                12 * splits / section / 2 * section,
                                false,
                                static_cast<unsigned char>(splits)};
      ASSERT_EQ(order.num_tiles(), 7 * 4 * 3 * splits);
      std::set<std::tuple<int, int, int, int>> seen;
      int last_n = 0, last_section = 0;
      for (int tile = 0; tile < order.num_tiles(); ++tile) {
        const KeyBlockIndex at = order.at(tile);
        EXPECT_TRUE(at.n_block < 7 && at.kv_head < 4 && at.batch < 3 && at.step_split < splits);
        seen.insert({at.n_block, at.kv_head, at.batch, at.step_split});
        const int split = (at.batch * 4 + at.kv_head) * splits + at.step_split;
        const int section_of_tile = std::min(split, order.last_section) / section;
        EXPECT_TRUE(section_of_tile > last_section || at.n_block >= last_n);
        EXPECT_GE(section_of_tile, last_section);
        last_n = at.n_block;
        last_section = section_of_tile;
      }
      EXPECT_EQ(seen.size(), size_t(order.num_tiles()));
    }
  }
}

}  // namespace
}  // namespace fa3::hopper
