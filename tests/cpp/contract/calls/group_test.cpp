// SPDX-License-Identifier: Apache-2.0
//
// Few query rows that share many keys, as in decoding: groups of any size, lengths next to what an
// engine takes at once, in every order of memory, behind every kind of mask.
#include <gtest/gtest.h>

#include <iterator>

#include "contract/fixture.h"

namespace fa3::test {
namespace {

class Group : public EngineTest {};
FA3_FOR_EVERY_ENGINE(Group);

struct Dims {
  int64_t dim, dim_v;
};
constexpr Dims kDims[] = {{64, 64}, {128, 128}, {40, 72}, {96, 32}, {16, 200}};

TEST_P(Group, of_any_size) {
  size_t number = 0;  // goes through layouts and head dims in turn
  for (const int64_t group : {2, 5, 8, 9, 16, 17, 64}) {
    for (const int64_t keys : {1, 63, 64, 65, 128, 700}) {
      const Dims dims = kDims[number % std::size(kDims)];
      Case c = dense_case(1, 1, keys, 2 * group, 2, dims.dim, dims.dim_v, FA3_BFLOAT16);
      c.in = kLayouts[number / 2 % std::size(kLayouts)];
      c.o_float32 = number % 2 == 1;
      c.seed = ++number;
      EXPECT_TRUE(agrees(c));
    }
  }
}

// Some positions a group, so that rows see different keys.
TEST_P(Group, at_the_edges_of_masks) {
  for (const int64_t positions : {2, 5}) {
    for (const Layout layout : {Layout::bshd, Layout::bhsd}) {
      Case c = dense_case(2, positions, 700, 8, 2, 64, 96, FA3_BFLOAT16);
      c.in = layout;
      c.k.used = {700, 333};
      c.causal = true;
      EXPECT_TRUE(agrees(c));
      c.left = 130;
      EXPECT_TRUE(agrees(c));
      c.softcap = 5;
      c.sink = true;
      EXPECT_TRUE(agrees(c));
    }
  }
}

// References that have to follow the scores, and weights that differ by orders of magnitude.
TEST_P(Group, with_peaked_scores) {
  for (const Scores scores : {Scores::huge, Scores::rising, Scores::falling, Scores::last_key}) {
    for (const int64_t group : {6, 12}) {
      Case c = dense_case(1, 1, 1000, 2 * group, 2, 64, 64, FA3_BFLOAT16);
      c.scores = scores;
      c.amount = 300;
      EXPECT_TRUE(agrees(c));
    }
  }
}

}  // namespace
}  // namespace fa3::test
