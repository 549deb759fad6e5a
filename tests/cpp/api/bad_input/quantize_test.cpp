// SPDX-License-Identifier: Apache-2.0
#include <fa3/fp8.h>
#include <fa3/tensor.h>
#include <gtest/gtest.h>

#include "api/calls.h"

namespace fa3::test::quantize_bad_input {
namespace {

using P = fa3_quantize_params;
using Bad = BadInput<P>;

// Batch 2, 70 rows (2 blocks), 3 heads, 16 channels, with everything.
struct QuantizeCall {
  Tensor x{{2, 70, 3, 16}, FA3_FLOAT16};
  Tensor y{{2, 70, 3, 16}, FA3_FLOAT8_E4M3};
  Tensor descale{{2, 2, 3, 1}, FA3_FLOAT32, Layout::bhsd};
  Tensor mean{{1, 2, 3, 16}, FA3_FLOAT32};
  std::vector<float> table = std::vector<float>(70 * 4, 0.5f);
  GuardedWorkspace workspace{size_t{1} << 20};
  P params;

  QuantizeCall() {
    x.randomize(1);
    fa3_quantize_params_init(&params);
    params.x = x.dense();
    params.y = y.dense();
    params.descale = descale.dense_lse();
    params.mean = mean.packed();
    params.rotary_cos = params.rotary_sin = contiguous(table.data(), FA3_FLOAT32, {70, 4});
  }
  fa3_status run() { return fa3_quantize(&params, workspace.data(), 1 << 20, nullptr); }
  bool outputs_untouched() const {
    return y.untouched() && descale.untouched() && mean.untouched();
  }
};

const std::vector<Bad>& bad_inputs() {
  static const std::vector<Bad> bad = {
      {"x_rank", [](P* p) { p->x.rank = 3; }, "x:", {"expected rank 4", "got rank 3"}},
      {"x_type", [](P* p) { p->x.dtype = FA3_FLOAT8_E4M3; }, "x:", {"float16", "float8_e4m3"}},
      {"x_null", [](P* p) { p->x.data = nullptr; }, "x:", {"null pointer"}},
      {"x_dim", [](P* p) { p->x.shape[3] = 513; }, "x:", {"[1, 512]", "513"}},
      {"y_type", [](P* p) { p->y.dtype = FA3_FLOAT16; }, "y:", {"float8_e4m3", "got float16"}},
      {"transposed_flag", [](P* p) { p->transposed = -1; }, "transposed:", {"0 or 1", "got -1"}},
      {"transposed_rows", [](P* p) { p->transposed = 1; }, "y:", {"stride 1 in dimension 1"}},
      {"y_rows", [](P* p) { p->y.shape[1] = 69; }, "y:", {"seq = 70", "got 69"}},
      {"y_missing", [](P* p) { p->y = {}; }, "y:", {"rank 4", "got rank 0"}},
      {"y_expanded", [](P* p) { p->y.stride[0] = 0; }, "y:", {"do not overlap"}},
      {"y_is_x", [](P* p) { p->y.data = p->x.data; }, "y:", {"overlaps x"}},
      {"descale_missing", [](P* p) { p->descale = {}; }, "descale:", {"rank 1 (1)", "got rank 0"}},
      {"descale_rank", [](P* p) { p->descale.rank = 4; }, "descale:", {"got rank 4"}},
      {"descale_type", [](P* p) { p->descale.dtype = FA3_FLOAT16; }, "descale:", {"float32"}},
      {"descale_heads", [](P* p) { p->descale.shape[1] = 2; }, "descale:", {"heads = 3", "got 2"}},
      {"descale_batch", [](P* p) { p->descale.shape[0] = 1; }, "descale:", {"batch = 2", "got 1"}},
      {"descale_blocks",
       [](P* p) { p->descale.shape[2] = 1; },
       "descale:",
       {"at least 2 blocks of 64 rows for 70 rows", "got 1"}},
      {"descale_vector",
       [](P* p) {
         p->descale.rank = 1;
         p->descale.shape[0] = 2;
       },
       "descale:",
       {"one scale for the whole tensor = 1", "got 2"}},
      {"descale_expanded", [](P* p) { p->descale.stride[2] = 0; }, "descale:", {"do not overlap"}},
      {"mean_rank", [](P* p) { p->mean.rank = 2; }, "mean:", {"rank 3", "got rank 2"}},
      {"mean_heads", [](P* p) { p->mean.shape[1] = 4; }, "mean:", {"heads = 3", "got 4"}},
      {"mean_dim", [](P* p) { p->mean.shape[2] = 8; }, "mean:", {"head dim = 16", "got 8"}},
      {"mean_is_descale",
       [](P* p) { p->descale.data = p->mean.data; },
       "mean:",
       {"overlaps descale"}},
      {"mean_on_gpu", [](P* p) { p->mean.device_type = FA3_CUDA; }, "mean:", {"got cuda"}},
      {"cos_alone", [](P* p) { p->rotary_sin = {}; }, "rotary_cos, rotary_sin:", {"both", "cos"}},
      {"cos_rows",
       [](P* p) { p->rotary_cos.shape[0] = 69; },
       "rotary_cos:",
       {"at least 70 positions", "got 69"}},
      {"sin_pairs", [](P* p) { p->rotary_sin.shape[1] = 3; }, "rotary_sin:", {"= 4", "got 3"}},
      {"cos_pairs",
       [](P* p) { p->rotary_cos.shape[1] = 9; },
       "rotary_cos:",
       {"1 to 8 pairs", "got 9"}},
      {"sin_type", [](P* p) { p->rotary_sin.dtype = FA3_FLOAT16; }, "rotary_sin:", {"float32"}},
      {"hadamard", [](P* p) { p->hadamard = 2; }, "hadamard:", {"0 or 1", "got 2"}},
      {"interleaved", [](P* p) { p->rotary_interleaved = -1; }, "rotary_interleaved:", {"got -1"}},
      {"threads", [](P* p) { p->num_threads = -4; }, "num_threads:", {"got -4"}},
      {"engine", [](P* p) { p->engine = 99; }, "engine:", {"fa3_engine_id", "got 99"}},
      {"max_seqlen", [](P* p) { p->max_seqlen = -1; }, "max_seqlen:", {"got -1"}},
      {"struct_size", [](P* p) { p->struct_size = 3; }, "params:", {"struct_size", "got 3"}},
      {"standard_engine",
       [](P* p) { p->engine = FA3_ENGINE_STANDARD; },
       "no engine can run this call",
       {"standard: does not quantize"},
       FA3_UNSUPPORTED},
  };
  return bad;
}

class QuantizeBadInput : public testing::TestWithParam<Bad> {};
INSTANTIATE_TEST_SUITE_P(all, QuantizeBadInput, testing::ValuesIn(bad_inputs()),
                         name_of_bad_input<P>);

TEST_P(QuantizeBadInput, is_explained_and_changes_nothing) {
  QuantizeCall call;
  GetParam().change(&call.params);
  EXPECT_EQ(call.run(), GetParam().status) << fa3_last_error();
  EXPECT_TRUE(last_error_says(GetParam().argument, GetParam().words));
  EXPECT_TRUE(call.outputs_untouched());
}

TEST(QuantizeCallItself, is_valid_and_a_question_needs_no_data) {
  QuantizeCall call;
  EXPECT_EQ(call.run(), FA3_OK) << fa3_last_error();
  size_t bytes = 0, without_data = 0;
  ASSERT_EQ(fa3_quantize_workspace_size(&call.params, &bytes), FA3_OK);
  EXPECT_GT(bytes, 0u);
  EXPECT_EQ(fa3_quantize(&call.params, call.workspace.data(), bytes - 1, nullptr),
            FA3_WORKSPACE_TOO_SMALL);
  P& p = call.params;
  for (fa3_tensor* t : {&p.x, &p.y, &p.descale, &p.mean, &p.rotary_cos, &p.rotary_sin}) {
    t->data = nullptr;
  }
  EXPECT_EQ(fa3_quantize_supported(&p), FA3_OK) << fa3_last_error();
  ASSERT_EQ(fa3_quantize_workspace_size(&p, &without_data), FA3_OK) << fa3_last_error();
  EXPECT_GE(without_data, bytes);
}

TEST(QuantizeCallItself, costs_nothing_for_a_batch_without_rows) {
  QuantizeCall call;
  for (fa3_tensor* t : {&call.params.x, &call.params.y}) {
    *t = contiguous(nullptr, static_cast<fa3_dtype>(t->dtype), {int64_t{1} << 40, 0, 3, 16});
  }
  call.params.mean = {};
  call.params.descale = contiguous(call.descale.dense_lse().data, FA3_FLOAT32, {1});
  EXPECT_EQ(call.run(), FA3_OK) << fa3_last_error();
}

struct Lent {
  std::vector<std::byte> memory;
  int times = 0;
  static void* lend(void* self, size_t bytes) {
    auto* lent = static_cast<Lent*>(self);
    ++lent->times;
    lent->memory.resize(bytes);
    return lent->memory.data();
  }
};

TEST(QuantizeTogether, writes_what_single_calls_write_in_a_workspace_that_is_lent_once) {
  QuantizeCall single, first, second;
  second.params.hadamard = single.params.hadamard = 1;
  ASSERT_EQ(single.run(), FA3_OK) << fa3_last_error();
  const P* const calls[] = {&first.params, &second.params};
  Lent lent;
  ASSERT_EQ(fa3_quantize_together_with_allocator(calls, 2, Lent::lend, &lent, nullptr), FA3_OK)
      << fa3_last_error();
  EXPECT_EQ(lent.times, 1);
  EXPECT_EQ(second.y.values().numbers, single.y.values().numbers);
  EXPECT_EQ(second.mean.values().numbers, single.mean.values().numbers);
  EXPECT_NE(first.y.values().numbers, single.y.values().numbers);
}

TEST(QuantizeTogether, refuses_wrong_calls_by_number_and_changes_nothing) {
  QuantizeCall first, second;
  const P* const calls[] = {&first.params, &second.params, nullptr, &first.params};
  Lent lent;
  const auto run = [&](const P* const* params, int32_t count, fa3_workspace_allocator allocate) {
    return fa3_quantize_together_with_allocator(params, count, allocate, &lent, nullptr);
  };
  const auto expect = [&](fa3_status status, const char* argument, const char* words) {
    EXPECT_EQ(status, FA3_INVALID_ARGUMENT);
    EXPECT_TRUE(last_error_says(argument, {words}));
  };
  expect(run(calls, 0, Lent::lend), "count:", "1 to 3");
  expect(run(calls, 4, Lent::lend), "count:", "got 4");
  expect(run(calls, 3, Lent::lend), "params:", "null pointer");
  expect(run(nullptr, 1, Lent::lend), "params:", "null pointer");
  expect(run(calls, 2, nullptr), "allocate:", "null pointer");
  second.params.x.device_type = FA3_CUDA;
  expect(run(calls, 2, Lent::lend), "params[1].", "cuda");
  second.params.x.device_type = FA3_CPU;
  second.params.y.data = first.params.x.data;
  expect(run(calls, 2, Lent::lend), "y:", "overlaps x");
  second.params.y.data = first.params.y.data;
  expect(run(calls, 2, Lent::lend), "y:", "overlaps y");
  EXPECT_EQ(lent.times, 0);
  EXPECT_TRUE(first.outputs_untouched() && second.outputs_untouched());
}

// y, descale and mean are read, x is written.
TEST(DequantizeTogether, refuses_wrong_calls_by_number_and_changes_nothing) {
  QuantizeCall first, second;
  for (QuantizeCall* call : {&first, &second}) {
    call->params.rotary_cos = call->params.rotary_sin = {};
    call->x.poison();
    call->y.randomize(2);
    for (int64_t b = 0; b < 2; ++b) call->descale.fill_row(b, 0, 0.5f);
    for (int64_t b = 0; b < 2; ++b) call->descale.fill_row(b, 1, 0.5f);
    call->mean.randomize(3);
  }
  const P* const calls[] = {&first.params, &second.params, nullptr};
  const auto expect = [&](const P* const* params, int32_t count, const char* argument,
                          const char* words) {
    EXPECT_EQ(fa3_dequantize_together(params, count, nullptr), FA3_INVALID_ARGUMENT);
    EXPECT_TRUE(last_error_says(argument, {words}));
  };
  expect(calls, 0, "count:", "1 to 3");
  expect(calls, 4, "count:", "got 4");
  expect(nullptr, 1, "params:", "null pointer");
  expect(calls, 3, "params:", "null pointer");
  const P kept[] = {first.params, second.params};
  const auto expect_of_second = [&](const char* argument, const char* words) {
    expect(calls, 2, argument, words);
    first.params = kept[0];
    second.params = kept[1];
  };
  second.params.y.dtype = FA3_FLOAT16;
  expect_of_second("params[1].y:", "float8_e4m3");
  second.params.x.data = second.params.y.data;  // and, being wider, of what lies behind it
  expect_of_second("params[1].x:", "overlaps");
  second.params.x.stride[0] = 0;
  expect_of_second("params[1].x:", "do not overlap");
  second.params.x.data = first.params.x.data;
  expect_of_second("x:", "overlaps x");
  first.params.mean.data = second.params.x.data;
  expect_of_second("x:", "overlaps mean");
  second.params.x.device_type = second.params.y.device_type = FA3_CUDA;
  second.params.descale.device_type = second.params.mean.device_type = FA3_CUDA;
  expect_of_second("params[1].x:", "device of params[0].x");
  second.params.rotary_cos = second.params.rotary_sin =
      contiguous(second.table.data(), FA3_FLOAT32, {70, 4});
  expect_of_second("params[1].rotary_cos, rotary_sin:", "expected none");
  EXPECT_TRUE(first.x.untouched() && second.x.untouched());
  second.params.descale.stride[0] = second.params.descale.stride[1] = 0;  // read, so it may
  ASSERT_EQ(fa3_dequantize_together(calls, 2, nullptr), FA3_OK) << fa3_last_error();
  EXPECT_EQ(first.x.values().numbers, second.x.values().numbers);
}

}  // namespace
}  // namespace fa3::test::quantize_bad_input
