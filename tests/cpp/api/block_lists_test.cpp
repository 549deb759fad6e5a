// SPDX-License-Identifier: Apache-2.0
//
// Lists of a block mask on engines that make none: what is made is nothing, and goes with a call
// that is like it alone.
#include <gtest/gtest.h>

#include <string>

#include "api/calls.h"

namespace fa3::test {
namespace {

int32_t g_map[1] = {-1};

template <class Call>
fa3_options& with_mask(Call* call) {
  fa3_options& options = call->params.options;
  options.block_mask = contiguous(g_map, FA3_INT32, {1, 1, 1, 1});
  return options;
}

TEST(BlockLists, of_engines_that_make_none_are_nothing_in_both_passes) {
  ForwardCall forward;
  fa3_options& options = with_mask(&forward);
  size_t bytes = 1;
  ASSERT_EQ(fa3_forward_block_lists_size(&forward.params, &bytes), FA3_OK) << fa3_last_error();
  EXPECT_EQ(bytes, 0u);
  fa3_block_lists lists{.data = g_map, .made_for = {}};
  ASSERT_EQ(fa3_forward_make_block_lists(&forward.params, nullptr, 0, nullptr, &lists), FA3_OK)
      << fa3_last_error();
  EXPECT_EQ(lists.data, nullptr);
  options.block_lists = &lists;
  EXPECT_EQ(forward.run(), FA3_OK) << fa3_last_error();
  EXPECT_EQ(forward.o.find_unwritten(), "");

  BackwardCall backward;
  fa3_options& of_backward = with_mask(&backward);
  bytes = 1;
  ASSERT_EQ(fa3_backward_block_lists_size(&backward.params, &bytes), FA3_OK) << fa3_last_error();
  EXPECT_EQ(bytes, 0u);
  of_backward.block_lists = &lists;  // the forward's
  EXPECT_EQ(backward.run(), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("block_lists", {"another pass", "1", "here 2"}));
  EXPECT_TRUE(backward.outputs_untouched());
  ASSERT_EQ(fa3_backward_make_block_lists(&backward.params, nullptr, 0, nullptr, &lists), FA3_OK)
      << fa3_last_error();
  EXPECT_EQ(backward.run(), FA3_OK) << fa3_last_error();
}

// Lists that a call has already are of no use for making others.
TEST(BlockLists, are_made_whatever_lists_the_params_have) {
  ForwardCall call;
  const fa3_block_lists wrong{.data = g_map, .made_for = {7}};
  with_mask(&call).block_lists = &wrong;
  fa3_block_lists lists;
  EXPECT_EQ(fa3_forward_make_block_lists(&call.params, nullptr, 0, nullptr, &lists), FA3_OK)
      << fa3_last_error();
}

TEST(BlockLists, that_do_not_fit_are_refused_and_nothing_is_written) {
  ForwardCall call;
  fa3_options& options = with_mask(&call);
  fa3_block_lists lists{};
  options.block_lists = &lists;
  EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("block_lists", {"fa3_forward_make_block_lists()", "nothing was"}));
  ASSERT_EQ(fa3_forward_make_block_lists(&call.params, nullptr, 0, nullptr, &lists), FA3_OK);
  options.causal = 1;
  EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("block_lists", {"right end of the window", "here 0"}));
  options.causal = 0;
  lists.data = reinterpret_cast<std::byte*>(g_map) + 1;
  EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("block_lists", {"aligned to 256 bytes"}));
  lists.data = nullptr;
  options.block_mask = {};
  EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("block_lists", {"only together with block_mask"}));
  EXPECT_TRUE(call.outputs_untouched());
  size_t bytes = 1;
  EXPECT_EQ(fa3_forward_block_lists_size(&call.params, &bytes), FA3_OK) << fa3_last_error();
  EXPECT_EQ(bytes, 0u);  // no mask, no lists
}

TEST(BlockLists, without_a_place_for_the_answer_are_refused) {
  ForwardCall call;
  with_mask(&call);
  EXPECT_EQ(fa3_forward_block_lists_size(&call.params, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("bytes", {"null"}));
  EXPECT_EQ(fa3_forward_make_block_lists(&call.params, nullptr, 0, nullptr, nullptr),
            FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("lists", {"null pointer"}));
  EXPECT_EQ(fa3_forward_make_block_lists(nullptr, nullptr, 0, nullptr, nullptr),
            FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("params", {"null pointer"}));
}

}  // namespace
}  // namespace fa3::test
