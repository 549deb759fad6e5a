// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/timing.h"

#include <gtest/gtest.h>

namespace fa3::cli {
namespace {

TEST(Timing, the_median_leaves_out_the_warm_up) {
  const double seconds[] = {100, 3, 1, 2};
  int call = 0;
  const Timing timing = time_call([&] { return seconds[call++]; }, 3);
  EXPECT_EQ(call, 4);
  EXPECT_EQ(timing.repeats, 3);
  EXPECT_EQ(timing.median, 2);
  EXPECT_EQ(timing.min, 1);
  EXPECT_EQ(timing.max, 3);
}

TEST(Timing, an_even_number_of_calls_averages_the_middle_two) {
  const double seconds[] = {100, 4, 1, 2, 9};
  int call = 0;
  EXPECT_EQ(time_call([&] { return seconds[call++]; }, 4).median, 3);
}

TEST(Timing, at_least_seven_calls_unless_they_are_long) {
  const auto repeats_of = [](double seconds) {
    return time_call([seconds] { return seconds; }).repeats;
  };
  EXPECT_EQ(repeats_of(1e-6), 51);
  EXPECT_EQ(repeats_of(0.5), 7);
  EXPECT_EQ(repeats_of(2.8), 7);
  EXPECT_EQ(repeats_of(5), 4);
  EXPECT_EQ(repeats_of(1000), 1);
}

TEST(Timing, flops_are_those_of_the_papers) {
  const Shape square{.batch = 2,
                     .heads = 8,
                     .kv_heads = 2,
                     .seqlen_q = 1000,
                     .seqlen_k = 1000,
                     .head_dim = 64,
                     .head_dim_v = 64};
  const double full = 4.0 * 2 * 8 * 1000 * 1000 * 64;
  EXPECT_EQ(forward_flops(square, false), full);
  EXPECT_EQ(forward_flops(square, true), full / 2);
  EXPECT_EQ(backward_flops(square, true), full / 2 * 2.5);
}

TEST(Timing, causal_flops_follow_the_bottom_right_corner) {
  Shape shape{.batch = 1,
              .heads = 1,
              .kv_heads = 1,
              .seqlen_q = 10,
              .seqlen_k = 100,
              .head_dim = 1,
              .head_dim_v = 1};
  // 90 keys before the diagonal for all, and half of a 10 x 10 square.
  EXPECT_EQ(forward_flops(shape, true), 4.0 * (10 * 90 + 50));
  std::swap(shape.seqlen_q, shape.seqlen_k);
  // Only the last 10 queries see a key.
  EXPECT_EQ(forward_flops(shape, true), 4.0 * 50);
}

}  // namespace
}  // namespace fa3::cli
