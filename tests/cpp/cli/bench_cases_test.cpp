// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench_cases.h"

#include <gtest/gtest.h>

namespace fa3::cli {
namespace {

TEST(Sweep, without_lists_it_is_one_case_in_which_the_optional_extents_follow) {
  const std::vector<BenchCase> cases = sweep({.head_dim = {96}, .seqlen = {777}, .heads = {12}});
  ASSERT_EQ(cases.size(), 1u);
  EXPECT_EQ(cases[0].shape.seqlen_k, 777);
  EXPECT_EQ(cases[0].shape.kv_heads, 12);
  EXPECT_EQ(cases[0].shape.head_dim_v, 96);
  EXPECT_GE(cases[0].threads, 1);
}

TEST(Sweep, is_the_product_of_the_lists_with_engines_innermost) {
  const std::vector<BenchCase> cases = sweep({.engine = {"cpu", "standard"},
                                              .pass = {"fwd", "bwd"},
                                              .head_dim = {64, 128},
                                              .seqlen = {1, 2, 3},
                                              .causal = {0, 1}});
  ASSERT_EQ(cases.size(), 48u);
  EXPECT_EQ(cases[0].engine, "cpu");
  EXPECT_EQ(cases[1].engine, "standard");
  EXPECT_EQ(cases[0].shape.seqlen_q, cases[1].shape.seqlen_q);
  EXPECT_TRUE(cases.back().backward);
  EXPECT_TRUE(cases.back().causal);
  EXPECT_EQ(cases.back().shape.head_dim, 128);
}

TEST(Sweep, optional_lists_sweep_too) {
  const std::vector<BenchCase> cases =
      sweep({.seqlen = {1}, .seqlen_k = {100, 200}, .heads = {8}, .kv_heads = {1, 8}});
  ASSERT_EQ(cases.size(), 4u);
  EXPECT_EQ(cases[3].shape.kv_heads, 8);
  EXPECT_EQ(cases[3].shape.seqlen_k, 200);
}

}  // namespace
}  // namespace fa3::cli
