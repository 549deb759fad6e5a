// SPDX-License-Identifier: Apache-2.0
//
// Which blocks of a map's row the mask rule cuts, against the rule pair by pair.
#include "engine/cuda/lists/row_cuts.h"

#include <gtest/gtest.h>

#include <set>

namespace fa3::cuda {
namespace {

using Rule = MaskRuleOf<int>;

// How many pairs of a block exist, and how many the rule shows.
struct Pairs {
  int exist = 0, seen = 0;
};
Pairs pairs_of(const Rule& rule, int query_block, int key_block, int seqlen_q, int seqlen_k) {
  Pairs pairs;
  for (int i = query_block * kMaskBlock; i < (query_block + 1) * kMaskBlock && i < seqlen_q; ++i) {
    for (int j = key_block * kMaskBlock; j < (key_block + 1) * kMaskBlock; ++j) {
      ++pairs.exist;
      pairs.seen += j < seqlen_k && rule.visible(i, j, seqlen_q, seqlen_k);
    }
  }
  return pairs;
}

void expect_right(const Rule& rule, int seqlen_q, int seqlen_k) {
  const int most = RowCuts::most(rule, seqlen_k);
  for (int row = 0; row * kMaskBlock < seqlen_q; ++row) {
    const RowCuts cuts = RowCuts::of(rule, row, seqlen_q, seqlen_k);
    std::set<int> cut, places, listed;
    for (int block = 0; block * kMaskBlock < seqlen_k; ++block) {
      const Pairs pairs = pairs_of(rule, row, block, seqlen_q, seqlen_k);
      if (!cuts.cuts(block)) {
        EXPECT_EQ(pairs.seen, cuts.holds(block) ? pairs.exist : 0) << row << " " << block;
        continue;
      }
      cut.insert(block);
      EXPECT_GE(cuts.place(block), 0);
      EXPECT_LT(cuts.place(block), most) << row << " " << block;
      places.insert(cuts.place(block));
    }
    for (int number = 0; cuts.cut(number) >= 0; ++number) listed.insert(cuts.cut(number));
    EXPECT_EQ(listed, cut) << "left " << rule.left << ", right " << rule.right << ", " << seqlen_q
                           << " x " << seqlen_k << ", row " << row;
    EXPECT_EQ(places.size(), cut.size());
  }
}

TEST(RowCuts, are_the_blocks_that_a_rule_shows_in_part) {
  for (int left : {Rule::kUnbounded, 0, 5, 127, 128, 300, -40}) {
    for (int right : {Rule::kUnbounded, 0, 7, 130, -50}) {
      if (left != Rule::kUnbounded && right != Rule::kUnbounded && left + right < 0) continue;
      for (const auto& [seqlen_q, seqlen_k] :
           {std::pair{1, 1}, {300, 700}, {256, 512}, {257, 511}, {700, 300}, {129, 1000}}) {
        expect_right({left, right}, seqlen_q, seqlen_k);
      }
    }
  }
}

}  // namespace
}  // namespace fa3::cuda
