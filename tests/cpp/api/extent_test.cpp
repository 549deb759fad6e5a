// SPDX-License-Identifier: Apache-2.0
//
// Huge extents beside an extent of 0 need no memory, so any caller can give them: they cost no time
// and overflow nothing. A test that hangs has failed.
#include <fa3/attention.h>
#include <gtest/gtest.h>

#include "api/calls.h"

namespace fa3::test {
namespace {

constexpr int64_t kHuge = int64_t{1} << 40;

struct Sizes {
  int64_t batch, seqlen_q, seqlen_k, heads_q, heads_k;
};

// Only what has elements has memory.
struct EmptyCall {
  std::vector<float> memory = std::vector<float>(4096, 7.0f);
  ForwardArgs forward;
  BackwardArgs backward;

  EmptyCall(Sizes n, int32_t engine) {
    int next = 0;
    const auto view = [&](std::initializer_list<int64_t> shape) {
      fa3_tensor tensor = contiguous(nullptr, FA3_FLOAT32, shape);
      int64_t elements = 1;
      for (int64_t extent : shape) elements *= extent == 0 ? 0 : elements == 0 ? 0 : extent;
      if (elements > 0) tensor.data = memory.data() + 256 * next++;
      return tensor;
    };
    forward.q = view({n.batch, n.seqlen_q, n.heads_q, 8});
    forward.k = view({n.batch, n.seqlen_k, n.heads_k, 8});
    forward.v = view({n.batch, n.seqlen_k, n.heads_k, 8});
    forward.o = view({n.batch, n.seqlen_q, n.heads_q, 8});
    forward.lse = view({n.batch, n.heads_q, n.seqlen_q});
    forward.options.engine = engine;
    forward.options.num_threads = 2;
    backward.options = forward.options;
    backward.q = forward.q;
    backward.k = forward.k;
    backward.v = forward.v;
    backward.o = forward.o;
    backward.lse = forward.lse;
    backward.d_o = view({n.batch, n.seqlen_q, n.heads_q, 8});
    backward.dq = view({n.batch, n.seqlen_q, n.heads_q, 8});
    backward.dk = view({n.batch, n.seqlen_k, n.heads_k, 8});
    backward.dv = view({n.batch, n.seqlen_k, n.heads_k, 8});
  }
};

TEST(HugeExtents, beside_an_empty_one_cost_nothing) {
  const Sizes all[] = {
      {kHuge, 0, 0, 1, 1},    {kHuge, 0, 0, 4096, 1},    {2, 0, 3, kHuge, 1},
      {0, kHuge, 1000, 2, 1}, {0, kHuge, 5, 1 << 17, 1}, {1, 0, 0, kHuge, kHuge},
  };
  for (int32_t engine : {FA3_ENGINE_AUTO, FA3_ENGINE_REFERENCE, FA3_ENGINE_STANDARD}) {
    for (const Sizes& sizes : all) {
      EmptyCall call(sizes, engine);
      Workspace workspace;
      size_t bytes = 0;
      EXPECT_EQ(fa3_forward_plan_text(&call.forward, nullptr, 0, &bytes), FA3_OK)
          << fa3_last_error();
      const Status done = forward(call.forward, workspace);
      EXPECT_TRUE(done.ok()) << done.message();
      const Status back = backward(call.backward, workspace);
      EXPECT_TRUE(back.ok()) << back.message();
      for (const fa3_tensor& gradient : {call.backward.dk, call.backward.dv}) {
        if (gradient.data == nullptr) continue;
        for (int64_t i = 0; i < sizes.batch * sizes.seqlen_k * sizes.heads_k * 8; ++i) {
          EXPECT_EQ(static_cast<float*>(gradient.data)[i], 0.0f);
        }
      }
    }
  }
}

TEST(HugeExtents, plans_do_not_count_sequences_one_by_one) {
  fa3_forward_params params;
  fa3_forward_params_init(&params);
  params.q = params.o = contiguous(nullptr, FA3_FLOAT32, {kHuge, 1, 1, 8});
  params.k = params.v = contiguous(nullptr, FA3_FLOAT32, {kHuge, 4096, 1, 8});
  size_t bytes = 0;
  EXPECT_EQ(fa3_forward_workspace_size(&params, &bytes), FA3_OK) << fa3_last_error();
  const fa3_tensor starts = contiguous(nullptr, FA3_INT32, {kHuge});
  params.options.seqused_k = starts;  // no data: a question
  EXPECT_EQ(fa3_forward_workspace_size(&params, &bytes), FA3_OK) << fa3_last_error();
}

TEST(HugeExtents, of_which_one_is_0_are_refused_where_their_product_overflows) {
  EmptyCall call({1, 0, 0, 1, 1}, FA3_ENGINE_AUTO);
  call.forward.q.shape[0] = 0;
  call.forward.q.shape[1] = call.forward.q.shape[2] = kHuge;
  EXPECT_EQ(fa3_forward_supported(&call.forward), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("q:", {"2^60"}));
  EmptyCall keys({0, kHuge, 5, 1 << 17, 1}, FA3_ENGINE_AUTO);
  keys.forward.k.shape[1] = keys.forward.v.shape[1] = kHuge;
  EXPECT_EQ(fa3_forward_supported(&keys.forward), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("q, k:", {"overflows 64 bits"}));
}

// A stride that no element is reached by may be anything. The sanitizer watches the sums.
TEST(HugeExtents, overflow_no_sum_on_the_way_to_a_refusal) {
  float memory[16] = {}, out[8] = {};
  fa3_merge_params merge;
  fa3_merge_params_init(&merge);
  merge.o_partial = contiguous(memory, FA3_FLOAT32, {1, 1, 1, 1, 8});
  merge.o_partial.stride[0] = int64_t{1} << 62;
  merge.lse_partial = contiguous(memory + 8, FA3_FLOAT32, {1, 1, 1, 1});
  merge.lse_partial.stride[0] = int64_t{1} << 62;
  merge.o = contiguous(memory, FA3_FLOAT32, {1, 1, 1, 8});  // the partial itself
  merge.lse = contiguous(out, FA3_FLOAT32, {1, 1, 1});
  EXPECT_EQ(fa3_merge(&merge, nullptr), FA3_OK) << fa3_last_error();
  fa3_forward_params params;
  fa3_forward_params_init(&params);
  const int64_t pages = int64_t{1} << 40, rows = (int64_t{1} << 23) - 1;
  params.q = params.o = contiguous(nullptr, FA3_FLOAT32, {1, kHuge, 1, 1});
  params.k = params.v = contiguous(nullptr, FA3_FLOAT32, {1, rows, 1, 1});
  params.page_table = contiguous(nullptr, FA3_INT32, {1, pages});
  params.options.seqused_k = contiguous(nullptr, FA3_INT32, {1});
  EXPECT_NE(fa3_forward_supported(&params), FA3_OK);
}

TEST(HugeExtents, of_partials_cost_nothing_where_there_is_nothing_to_merge) {
  struct Merge {
    int64_t partials, batch, rows, heads, dim;
  };
  for (const Merge& n : {Merge{kHuge, 1, 0, 1, 8}, Merge{2, kHuge, 1, 0, 8},
                         Merge{kHuge, 0, 5, 2, 8}, Merge{3, 1, kHuge, 0, 8}}) {
    fa3_merge_params params;
    fa3_merge_params_init(&params);
    params.o_partial =
        contiguous(nullptr, FA3_FLOAT32, {n.partials, n.batch, n.rows, n.heads, n.dim});
    params.lse_partial = contiguous(nullptr, FA3_FLOAT32, {n.partials, n.batch, n.heads, n.rows});
    params.o = contiguous(nullptr, FA3_FLOAT32, {n.batch, n.rows, n.heads, n.dim});
    params.lse = contiguous(nullptr, FA3_FLOAT32, {n.batch, n.heads, n.rows});
    EXPECT_EQ(fa3_merge(&params, nullptr), FA3_OK) << fa3_last_error();
  }
}

}  // namespace
}  // namespace fa3::test
