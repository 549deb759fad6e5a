// SPDX-License-Identifier: Apache-2.0
//
// What engines are told of strides that lead nowhere, and of threads.
#include "api/describe/rules/operand_rules.h"

#include <gtest/gtest.h>

#include "core/threads.h"

namespace fa3::api {
namespace {

fa3_tensor tensor(fa3_device_type device, int64_t rows) {
  return {nullptr, FA3_FLOAT16, device, 0, 4, {1, rows, 3, 8}, {rows * 24, 24, 8, 1}};
}

TEST(Strides, of_a_single_row_or_sequence_are_zero) {
  const fa3_tensor one = tensor(FA3_CPU, 1);
  EXPECT_EQ(stride_of(one, 0), 0);
  EXPECT_EQ(stride_of(one, 1), 0);
  EXPECT_EQ(stride_of(one, 2), 8);
}

// Nothing may be added to the null pointer of an empty tensor; engines that want strides pick some.
TEST(Strides, of_an_empty_tensor_are_zero) {
  EXPECT_EQ(stride_of(tensor(FA3_CPU, 0), 2), 0);
  EXPECT_EQ(stride_of(tensor(FA3_CUDA, 0), 2), 0);
}

fa3_forward_params of_heads(int64_t heads, bool k_is_expanded, bool v_is_expanded) {
  const auto rows = [](int64_t of_heads, bool expanded) {
    return fa3_tensor{nullptr,
                      FA3_FLOAT16,
                      FA3_CUDA,
                      0,
                      4,
                      {1, 9, of_heads, 8},
                      {9 * of_heads * 8, of_heads * 8, expanded ? 0 : 8, 1}};
  };
  fa3_forward_params params{};
  params.options.scale = 1;
  params.options.window_left = params.options.window_right = FA3_WINDOW_UNBOUNDED;
  params.q = params.o = rows(6, false);
  params.k = rows(heads, k_is_expanded);
  params.v = rows(heads, v_is_expanded);
  return params;
}

// A GPU's copies know no stride of 0.
TEST(ExpandedHeads, of_keys_and_values_are_one_head_that_queries_share) {
  for (const auto& [heads, of_k, of_v, expected] : {std::tuple{3, true, true, 1},
                                                    {3, true, false, 3},
                                                    {3, false, true, 3},
                                                    {3, false, false, 3},
                                                    {1, false, false, 1}}) {
    Problem problem;
    ASSERT_TRUE(describe(of_heads(heads, of_k, of_v), Purpose::query, &problem).ok());
    EXPECT_EQ(problem.heads_k, expected);
    EXPECT_EQ(problem.heads_q, 6);
  }
}

TEST(Threads, are_those_asked_for_else_all_of_the_cpu_else_the_caller) {
  for (const auto& [asked, device, expected] : {std::tuple{3, FA3_CPU, 3},
                                                {3, FA3_CUDA, 3},
                                                {0, FA3_CPU, available_threads()},
                                                {0, FA3_CUDA, 1}}) {
    int threads = 0;
    EXPECT_TRUE(resolve_threads(asked, device, &threads).ok());
    EXPECT_EQ(threads, expected);
  }
}

}  // namespace
}  // namespace fa3::api
