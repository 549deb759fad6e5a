// SPDX-License-Identifier: Apache-2.0
// Which row of a table of the backward's kernels a shape gets.
#include <gtest/gtest.h>

#include <set>

#include "engine/hopper/plan/backward/plan_backward.h"
#include "engine/hopper/plan/plain_problem.h"
#include "engine/hopper/tables/dense_backward_table.h"
#include "engine/hopper/tables/wide_backward_table.h"

namespace fa3::hopper {
namespace {

TEST(SelectBackwardKernel, has_float32_gradients_to_128_columns) {
  for (const Variant variant : {Variant::kDense, Variant::kGeneral}) {
    for (const int64_t d : {8, 64, 72, 128, 136}) {
      const int row = select_wide_backward_kernel(d, d, variant);
      ASSERT_EQ(row != kNoBackwardKernel, d <= 128) << d;
      if (row == kNoBackwardKernel) continue;
      const BackwardConfig& c = kWideBackwardTable[size_t(row)].config;
      EXPECT_TRUE(c.wide && c.variant == variant && c.head_dim == (d <= 64 ? 64 : 128)) << d;
      EXPECT_FALSE(c.with(Element::kBf16, variant).can_take_short_sequences());
    }
  }
}

// Where a row for the same head dims has none, and no CTA is without keys of its own.
TEST(SelectBackwardKernel, has_pairs_of_128_columns_for_key_blocks_in_even_numbers) {
  const auto takes = [](int64_t d, int64_t dv, int64_t keys) {
    const int row = select_dense_backward_kernel(d, dv, {.queries = 8192, .keys = keys});
    return row != kNoBackwardKernel && kDenseBackwardTable[size_t(row)].config.pairs();
  };
  for (const int64_t d : {64, 96, 104, 128, 136, 192, 256, 264}) {
    EXPECT_EQ(takes(d, d, 1024), d == 104 || d == 128) << d;
  }
  EXPECT_TRUE(takes(64, 128, 1024) && takes(128, 8, 1024));
  for (const int64_t keys : {129, 200, 256, 1000, 2048}) EXPECT_TRUE(takes(128, 128, keys)) << keys;
  for (const int64_t keys : {1, 128, 257, 384, 1100}) EXPECT_FALSE(takes(128, 128, keys)) << keys;
}

// They have eight steps and less, on average, and add in any order.
TEST(SelectBackwardKernel, has_persistent_CTAs_at_64_columns_for_key_blocks_of_few_steps) {
  const auto takes = [](int64_t d, const DenseCall& call) {
    const int row = select_dense_backward_kernel(d, d, call);
    return row != kNoBackwardKernel && kDenseBackwardTable[size_t(row)].config.persistent;
  };
  // Eight key blocks, 256 times.
  const auto of = [](int64_t queries, int64_t group = 1, bool causal = false) {
    return DenseCall{
        .queries = queries, .keys = 1024, .group = group, .key_heads = 256, .is_causal = causal};
  };
  for (const int64_t d : {8, 32, 64, 72, 96, 128}) EXPECT_EQ(takes(d, of(512)), d <= 64) << d;
  EXPECT_TRUE(takes(64, of(1)) && takes(64, of(1024)) && takes(64, of(256, 4)));
  EXPECT_FALSE(takes(64, of(0)) || takes(64, of(1025)) || takes(64, of(257, 4)));
  EXPECT_TRUE(takes(64, of(2048, 1, true)) && !takes(64, of(2049, 1, true)));
  DenseCall call = of(512);
  call.deterministic = true;
  EXPECT_FALSE(takes(64, call));
  call = of(512);
  call.key_heads = 255;
  EXPECT_FALSE(takes(64, call));
}

// Every call that has a forward has gradients.
TEST(SelectBackwardKernel, gives_the_narrowest_that_fits_wherever_the_forward_has_a_kernel) {
  std::set<int> chosen;
  const Problem p = plain();
  const ForwardCall call = call_of(p);
  for (int64_t d = 8; d <= 264; d += 8) {
    for (int64_t dv = 8; dv <= 264; dv += 8) {
      const int row = select_backward_kernel(d, dv);
      const bool forward = is_served({p, call, {}, {.head_dim = d, .head_dim_v = dv}, kSms});
      ASSERT_EQ(row != kNoBackwardKernel, forward) << d << "/" << dv;
      if (row == kNoBackwardKernel) continue;
      chosen.insert(row);
      const BackwardConfig& c = kBackwardTable[row].config;
      for (const BackwardInstance& other : kBackwardTable) {
        const BackwardConfig& o = other.config;
        if (o.head_dim < d || o.head_dim_v < dv) continue;
        EXPECT_LE(c.head_dim + c.head_dim_v, o.head_dim + o.head_dim_v) << d << "/" << dv;
      }
    }
  }
  EXPECT_EQ(chosen.size(), kBackwardTable.size()) << "a kernel that nothing chooses is built";
}

}  // namespace
}  // namespace fa3::hopper
