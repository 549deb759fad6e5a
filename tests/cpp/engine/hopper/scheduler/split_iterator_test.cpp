// SPDX-License-Identifier: Apache-2.0
// The splits of tiles along the keys, by iterator, against brute force.
#include <gtest/gtest.h>

#include <array>
#include <utility>

#include "core/mask/mask_rule.h"
#include "engine/hopper/scheduler/right_splits.h"
#include "engine/hopper/scheduler/sequence_tiles.h"

namespace fa3::hopper {
namespace {

TEST(SplitKvSchedule, puts_every_visible_block_into_one_split) {
  const int32_t starts[] = {0, 5, 5, 70, 71, 300};
  const int32_t used_k[] = {1000, 0, 17, 640, 333};
  using Mask = MaskRuleOf<int>;
  for (const Mask& mask : {Mask{}, Mask{.right = 0}, Mask{.left = 150, .right = 0},
                           Mask{.left = 10}, Mask{.chunk = 90}, Mask{.right = 0, .chunk = 7},
                           Mask{.right = -40}, Mask{.left = -30}, Mask{.left = 70, .right = -9}}) {
    for (const bool packed : {false, true}) {
      for (const auto& [num_splits, groups_log2] :
           {std::pair{0, 0}, {0, 1}, {0, 3}, {1, 0}, {2, 0}, {3, 0}, {200, 0}}) {
        for (int in_a_row : {1, 3, 7, 99}) {
          const int num_blocks = in_a_row << groups_log2;
          const fa3::Lengths q{.cu_seqlens = packed ? starts : nullptr,
                               .max = packed ? 229 : 40,
                               .total = packed ? 310 : 5 * 40,
                               .varlen = packed,
                               .in_one_tensor = packed};
          const fa3::Lengths k{.seqused = used_k, .max = 1000, .total = 5000};
          const cuda::PackGqa pack{.log2 = 2};
          const SplitKvSchedule schedule{.sequences = {.lengths_q = q,
                                                       .lengths_k = k,
                                                       .batch = 5,
                                                       .block_m = 64,
                                                       .pack = pack,
                                                       .num_packs = 8},
                                         .mask = mask,
                                         .block_n = 32,
                                         .num_splits = num_splits,
                                         .most_m_blocks = (pack.rows(int(q.max)) + 63) / 64,
                                         .groups_log2 = groups_log2,
                                         .combine_by_tile = !packed && in_a_row > 3};
          ASSERT_NO_FATAL_FAILURE(expect_right_splits(schedule, num_blocks))
              << packed << ", " << num_splits << " splits, " << (1 << groups_log2) << " groups, "
              << num_blocks << " CTAs, window " << mask.left << ", " << mask.right << ", chunk "
              << mask.chunk;
        }
      }
    }
  }
}

// What is told of simple sequences in few instructions is what the list says, whatever the array
// holds.
TEST(SplitKvSchedule, knows_simple_sequences_as_the_list_does) {
  const int32_t used[] = {700, 0, -5, 1 << 30, 512};
  SplitKvSchedule schedule{.sequences = {.lengths_q = {.max = 3, .total = 15},
                                         .lengths_k = {.seqused = used, .max = 700, .total = 3500},
                                         .batch = 5,
                                         .block_m = 64,
                                         .pack = {.log2 = 3},
                                         .num_packs = 2},
                           .block_n = 64};
  ASSERT_TRUE(schedule.is_simple());
  schedule.simple = true;
  for (int b = 0; b < schedule.sequences.num_sequences(); ++b) {
    const SequenceTiles told = schedule.sequence(b),
                        has_varlen_metadata = schedule.sequences.sequence(b);
    const auto all = [](const SequenceTiles& s) {
      const auto& [batch, pack, begin, count, rows_used] = s.queries;
      return std::array{batch,
                        pack,
                        begin,
                        count,
                        rows_used,
                        s.keys.batch,
                        s.keys.begin,
                        s.keys.count,
                        s.number,
                        s.order.num_m_blocks,
                        s.order.num_packs};
    };
    EXPECT_EQ(all(told), all(has_varlen_metadata)) << b;
  }
  for (const auto& spoil : std::initializer_list<void (*)(SplitKvSchedule&)>{
           [](SplitKvSchedule& s) { s.sequences.lengths_q.varlen = true; },
           [](SplitKvSchedule& s) { s.sequences.lengths_k.in_one_tensor = true; },
           [](SplitKvSchedule& s) { s.sequences.lengths_k.padded_left = true; },
           [](SplitKvSchedule& s) { s.sequences.places.indexed = true; },
           [](SplitKvSchedule& s) {
             s.sequences.places.elsewhere = true;
             s.sequences.places.entries = 4;
           }}) {
    SplitKvSchedule other = schedule;
    spoil(other);
    EXPECT_FALSE(other.is_simple());
  }
}

}  // namespace
}  // namespace fa3::hopper
