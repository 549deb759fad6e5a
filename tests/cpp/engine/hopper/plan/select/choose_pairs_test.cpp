// SPDX-License-Identifier: Apache-2.0
// Which calls have their causal tiles in pairs of equal length, and in which ranges.
#include <gtest/gtest.h>

#include <utility>

#include "core/ceil_div.h"
#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/plan/plain_problem.h"
#include "engine/hopper/plan/select/choose_split.h"
#include "engine/hopper/scheduler/split_kv.h"

namespace fa3::hopper {
namespace {

Problem causal(int64_t heads, int64_t queries, int64_t keys, int64_t dim = 128, int64_t batch = 1) {
  Problem p = plain(batch, heads, heads, queries, keys, dim);
  p.mask.right = 0;
  return p;
}

// Ranges of the tiles in pairs; 0: they are not in pairs.
int ranges_of(const Problem& p) {
  const auto [row, tiling] = chosen_for(p);
  EXPECT_TRUE(!tiling.is_split() || row->kernel.can_split());
  return tiling.split.in_pairs ? tiling.split.ctas : 0;
}

// By the model, whose constants are measured (docs/lab/hopper.md): the longest tile of 4 heads of
// 4k tokens has 32 blocks, ranges have 17.
TEST(TilesInPairs, are_those_of_few_heads) {
  EXPECT_EQ(ranges_of(causal(4, 4096, 4096)), 128);
  EXPECT_EQ(ranges_of(causal(4, 4096, 4096, 64)), 128);
  EXPECT_EQ(ranges_of(causal(4, 4096, 4096, 256)), 128);
  EXPECT_EQ(ranges_of(causal(3, 4096, 4096)), 132);  // 96 would be two a pair
  EXPECT_EQ(ranges_of(causal(1, 4096, 4096)), 112);  // seven a pair: eight are as long
  EXPECT_EQ(ranges_of(causal(2, 8192, 8192)), 128);
  EXPECT_EQ(ranges_of(causal(1, 16384, 16384)), 128);
  EXPECT_EQ(ranges_of(causal(2, 4096, 4096, 128, 2)), 128);
  EXPECT_EQ(ranges_of(causal(4, 3000, 4096)), 132);
  EXPECT_EQ(ranges_of(causal(4, 4096, 4096, 96)), 128);  // by the kernel of 128 columns
  // Whole tiles are done as soon.
  EXPECT_EQ(ranges_of(causal(8, 4096, 4096)), 0);
  EXPECT_EQ(ranges_of(causal(16, 2048, 2048)), 0);
  EXPECT_EQ(ranges_of(causal(4, 8192, 8192)), 0);
  EXPECT_EQ(ranges_of(causal(8, 1024, 1024)), 0);
  EXPECT_EQ(ranges_of(causal(1, 128, 128)), 0);
}

// The pairs of the contract (contract/calls/tiles_test.cpp, edges/repeat_test.cpp).
TEST(TilesInPairs, are_those_of_the_contract) {
  EXPECT_GT(ranges_of(causal(1, 1300, 1300)), 0);
  EXPECT_GT(ranges_of(causal(1, 1280, 1780, 128, 2)), 0);
  EXPECT_GT(ranges_of(causal(1, 1800, 1800, 64)), 0);
  EXPECT_GT(ranges_of(causal(1, 800, 860, 256)), 0);
  for (const auto& [queries, keys] : {std::pair{1450, 1527}, {1200, 1290}, {1900, 1990}}) {
    Problem grouped = causal(2, queries, keys);
    grouped.heads_k = 1;
    EXPECT_GT(ranges_of(grouped), 0) << queries;
  }
  EXPECT_EQ(ranges_of(causal(1, 1000, 1000, 64)), 0);  // would gain a microsecond
}

// Tiles that see nearly the same keys are split as they are.
TEST(TilesInPairs, are_not_those_of_short_chunks) {
  for (const int64_t queries : {256, 512, 1024}) {
    const Problem p = causal(8, queries, 4096);
    EXPECT_EQ(ranges_of(p), 0) << queries;
    EXPECT_EQ(chosen_for(p).tiling.scheduler, Scheduler::kStreamK) << queries;
  }
}

TEST(TilesInPairs, are_causal_ones_of_known_lengths) {
  const auto ranges = [](const auto& change) {
    Problem p = causal(4, 4096, 4096);
    change(p);
    return ranges_of(p);
  };
  EXPECT_EQ(ranges([](Problem& p) { p.heads_k = 1; }), 128);
  EXPECT_EQ(ranges([](Problem& p) { p.softcap = 20; }), 128);
  EXPECT_EQ(ranges([](Problem& p) { p.num_splits = 1; }), 0);
  EXPECT_EQ(ranges([](Problem& p) { p.num_splits = 4; }), 0);
  EXPECT_EQ(ranges([](Problem& p) { p.batch_invariant = true; }), 0);
  EXPECT_EQ(ranges([](Problem& p) { p.mask = {}; }), 0);
  EXPECT_EQ(ranges([](Problem& p) { p.mask.left = 2000; }), 0);
  EXPECT_EQ(ranges([](Problem& p) { p.mask.right = -1; }), 0);
  EXPECT_EQ(ranges([](Problem& p) { p.mask.chunk = 1000; }), 0);
  EXPECT_EQ(ranges([](Problem& p) { p.lengths_k.max = 4000; }), 0);  // rows that see nothing
  EXPECT_EQ(ranges([](Problem& p) { p.lengths_k.varlen = true; }), 0);
}

// Each pair has the same number of these ranges: no range crosses its end.
TEST(TilesInPairs, have_whole_ranges_where_there_are_as_many) {
  const Problem p = causal(4, 4096, 4096);
  const ForwardCall call = call_of(p);
  const auto [row, tiling] = chosen_for(p);
  const Kernel& c = row->kernel;
  EXPECT_EQ(pair_blocks(c, call, tiling), 34);  // the longest and the shortest tile have 33
  EXPECT_EQ(most_splits(c, call, tiling), 3);
  Tiling all = tiling;
  all.split.ctas = 132;
  EXPECT_EQ(pair_blocks(c, call, all), 33);
  all.split.in_pairs = false;
  EXPECT_EQ(pair_blocks(c, call, all), 0);
  EXPECT_EQ(most_splits(c, call, all), 3);
  ForwardCall varlen = call;
  varlen.varlen = true;
  EXPECT_EQ(pair_blocks(c, varlen, tiling), 0);
  Kernel few_rows = c;
  few_rows.shape.block_m = kRowsPerWarpgroup;
  EXPECT_EQ(pair_blocks(few_rows, call, tiling), 0);
}

// Whatever the lengths: no range is much longer than its share, and none is empty.
TEST(TilesInPairs, have_ranges_of_equal_length) {
  int found = 0;
  for (const int64_t dim : {64, 128, 192, 256}) {
    for (const int64_t heads : {1, 2, 3, 4, 5}) {
      for (const int64_t queries : {700, 1500, 2048, 3000, 4096, 5000, 8192, 10000}) {
        for (const int64_t keys : {queries, queries + 77, 2 * queries - 1}) {
          const Problem p = causal(heads, queries, keys, dim);
          const ForwardCall call = call_of(p);
          const auto [row, tiling] = chosen_for(p);
          if (!tiling.split.in_pairs) continue;
          ++found;
          const Kernel& c = row->kernel;
          const PairedKvSchedule schedule{split_kv_schedule(c, call, tiling),
                                          pair_blocks(c, call, tiling)};
          const SequenceTiles s = schedule.sequence(0);
          const int ranges = tiling.split.ctas >> tiling.split.groups_log2;
          const int64_t longest = ceil_div(schedule.length_of(s), ranges);
          int64_t visible = 0;
          for (int m_block = 0; m_block < s.order.num_m_blocks; ++m_block) {
            visible += schedule.blocks_of(s, m_block).count;
          }
          const double share = double(visible * s.order.num_packs >> tiling.split.groups_log2) /
                               kSms * (1 << tiling.split.groups_log2);
          EXPECT_LE(double(longest), 1.15 * share + 2)
              << dim << ", " << heads << " heads, " << queries << " x " << keys;
          EXPECT_LT(longest * (ranges - 1), schedule.length_of(s));
          EXPECT_LE(tiling.split.ctas, kSms);
        }
      }
    }
  }
  EXPECT_GT(found, 100);
}

}  // namespace
}  // namespace fa3::hopper
