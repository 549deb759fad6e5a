// SPDX-License-Identifier: Apache-2.0
#include <fa3/tensor.h>
#include <gtest/gtest.h>

#include "api/calls.h"

namespace fa3::test::merge_bad_input {
namespace {

using P = fa3_merge_params;
using Bad = BadInput<P>;

// Three partials of batch 2, 5 rows, 4 heads, 8 columns.
struct MergeCall {
  std::vector<float> o_partial = std::vector<float>(3 * 2 * 5 * 4 * 8, 1.0f);
  std::vector<float> lse_partial = std::vector<float>(3 * 2 * 4 * 5, 0.0f);
  Tensor o{{2, 5, 4, 8}, FA3_FLOAT16};
  Tensor lse{{2, 5, 4, 1}, FA3_FLOAT32, Layout::bhsd};
  P params;

  MergeCall() {
    fa3_merge_params_init(&params);
    params.o_partial = contiguous(o_partial.data(), FA3_FLOAT32, {3, 2, 5, 4, 8});
    params.lse_partial = contiguous(lse_partial.data(), FA3_FLOAT32, {3, 2, 4, 5});
    params.o = o.dense();
    params.lse = lse.dense_lse();
  }
};

const std::vector<Bad>& bad_inputs() {
  static const std::vector<Bad> bad = {
      {"o_partial_rank", [](P* p) { p->o_partial.rank = 4; }, "o_partial:", {"rank 5", "rank 4"}},
      {"o_partial_huge_rank", [](P* p) { p->o_partial.rank = 1 << 30; }, "o_partial:", {"rank 5"}},
      {"o_partial_type", [](P* p) { p->o_partial.dtype = FA3_FLOAT16; }, "o_partial:", {"float32"}},
      {"o_partial_null", [](P* p) { p->o_partial.data = nullptr; }, "o_partial:", {"null"}},
      {"o_partial_stride", [](P* p) { p->o_partial.stride[4] = 2; }, "o_partial:", {"stride 1"}},
      {"no_partials",
       [](P* p) { p->o_partial.shape[0] = p->lse_partial.shape[0] = 0; },
       "o_partial:",
       {"at least one", "got 0"}},
      {"lse_partial_rank", [](P* p) { p->lse_partial.rank = 3; }, "lse_partial:", {"rank 4"}},
      {"lse_partial_count",
       [](P* p) { p->lse_partial.shape[0] = 2; },
       "lse_partial:",
       {"partials = 3", "got 2"}},
      {"lse_partial_rows",
       [](P* p) { p->lse_partial.shape[3] = 4; },
       "lse_partial:",
       {"seq = 5", "got 4"}},
      {"lse_partial_null", [](P* p) { p->lse_partial.data = nullptr; }, "lse_partial:", {"null"}},
      {"o_rank", [](P* p) { p->o.rank = 3; }, "o:", {"rank 4", "got rank 3"}},
      {"o_heads", [](P* p) { p->o.shape[2] = 3; }, "o:", {"= 4", "got 3"}},
      {"o_dtype", [](P* p) { p->o.dtype = FA3_INT32; }, "o:", {"float32", "got int32"}},
      {"o_null", [](P* p) { p->o.data = nullptr; }, "o:", {"null pointer"}},
      {"o_device", [](P* p) { p->o.device_type = FA3_CUDA; }, "o:", {"cpu", "got cuda"}},
      {"o_expanded", [](P* p) { p->o.stride[0] = 0; }, "o:", {"do not overlap"}},
      {"lse_rank", [](P* p) { p->lse.rank = 4; }, "lse:", {"rank 3"}},
      {"lse_dtype", [](P* p) { p->lse.dtype = FA3_FLOAT16; }, "lse:", {"float32"}},
      {"lse_rows", [](P* p) { p->lse.shape[2] = 6; }, "lse:", {"= 5", "got 6"}},
      {"threads", [](P* p) { p->num_threads = -4; }, "num_threads:", {"got -4"}},
      {"struct_size", [](P* p) { p->struct_size = 3; }, "params:", {"struct_size", "got 3"}},
  };
  return bad;
}

class MergeBadInput : public testing::TestWithParam<Bad> {};
INSTANTIATE_TEST_SUITE_P(all, MergeBadInput, testing::ValuesIn(bad_inputs()), name_of_bad_input<P>);

TEST_P(MergeBadInput, is_explained_and_changes_nothing) {
  MergeCall call;
  GetParam().change(&call.params);
  EXPECT_EQ(fa3_merge(&call.params, nullptr), GetParam().status) << fa3_last_error();
  EXPECT_TRUE(last_error_says(GetParam().argument, GetParam().words));
  EXPECT_TRUE(call.o.untouched() && call.lse.untouched());
}

TEST(MergeCallItself, is_valid_before_it_is_changed_and_without_lse) {
  MergeCall call;
  EXPECT_EQ(fa3_merge(&call.params, nullptr), FA3_OK) << fa3_last_error();
  MergeCall silent;
  silent.params.lse = {};
  EXPECT_EQ(fa3_merge(&silent.params, nullptr), FA3_OK) << fa3_last_error();
  EXPECT_EQ(silent.o.element_bits(), call.o.element_bits());
  EXPECT_TRUE(silent.lse.untouched());
}

// Rows of o_partial with padding of different kinds, in an order that interleaves the partials.
TEST(MergeOverlap, exactly_a_partial_is_allowed_whatever_the_padding) {
  const int64_t batch_stride = 3 * 5 * 37 + 11, partial_stride = 5 * 37 + 2, row_stride = 37;
  std::vector<float> memory(2 * batch_stride, 1.0f);
  const auto partial_at = [&](int64_t i) {
    return strided(memory.data() + i * partial_stride, FA3_FLOAT32, {2, 5, 4, 8},
                   {batch_stride, row_stride, 9, 1});
  };
  for (int64_t i = 0; i < 3; ++i) {
    MergeCall call;
    call.params.o_partial = strided(memory.data(), FA3_FLOAT32, {3, 2, 5, 4, 8},
                                    {partial_stride, batch_stride, row_stride, 9, 1});
    call.params.o = partial_at(i);
    EXPECT_EQ(fa3_merge(&call.params, nullptr), FA3_OK) << i << ": " << fa3_last_error();
    call.params.o.data = static_cast<float*>(call.params.o.data) + row_stride;  // a row further
    EXPECT_EQ(fa3_merge(&call.params, nullptr), FA3_INVALID_ARGUMENT);
    EXPECT_TRUE(last_error_says("o:", {"overlaps o_partial"}));
  }
}

// Exactly a partial is allowed (contract/calls/merge_test.cpp); a part of one is not.
TEST(MergeOverlap, with_a_shifted_partial_is_refused) {
  MergeCall call;
  call.params.o = contiguous(call.o_partial.data() + 8, FA3_FLOAT32, {2, 5, 4, 8});
  EXPECT_EQ(fa3_merge(&call.params, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("o:", {"overlaps o_partial"}));
  call.params.o = call.o.dense();
  call.params.lse = contiguous(call.lse_partial.data() + 1, FA3_FLOAT32, {2, 4, 5});
  EXPECT_EQ(fa3_merge(&call.params, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("lse:", {"overlaps lse_partial"}));
  EXPECT_TRUE(call.o.untouched());
}

}  // namespace
}  // namespace fa3::test::merge_bad_input
