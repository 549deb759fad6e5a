// SPDX-License-Identifier: Apache-2.0
//
// Outputs need memory of their own, element by element: views that interleave without sharing an
// element are fine, views that share one are refused before anything is written. An output that is
// longer than what it lies on may also reach another tensor first: the message names either.
#include <fa3/tensor.h>
#include <gtest/gtest.h>

#include "api/calls.h"

namespace fa3::test {
namespace {

fa3_tensor moved(fa3_tensor tensor, const fa3_tensor& to) {
  tensor.data = to.data;
  return tensor;
}

using Forward = BadInput<fa3_forward_params>;
class ForwardOverlap : public testing::TestWithParam<Forward> {};

const std::vector<Forward>& forward_overlaps() {
  using P = fa3_forward_params;
  static const std::vector<Forward> bad = {
      {"max_logit_is_lse",
       [](P* p) {
         p->max_logit = p->lse;
         p->max_logit.rank = 2;
         p->max_logit.stride[0] = 4;
         p->max_logit.stride[1] = 1;
       },
       "max_logit:",
       {"overlaps lse"}},
      {"o_is_gate", [](P* p) { p->gate = p->o; }, "o:", {"overlaps gate"}},
      {"o_is_q", [](P* p) { p->o.data = p->q.data; }, "o:", {"overlaps q"}},
      {"o_is_k", [](P* p) { p->o.data = p->k.data; }, "o:", {"overlaps"}},
      {"o_is_v", [](P* p) { p->o.data = p->v.data; }, "o:", {"overlaps"}},
      {"o_ends_in_v",
       [](P* p) {
         const size_t bytes = size_t{2 * 6 * 4 * 16} * 2;
         p->o.data = static_cast<char*>(p->v.data) - bytes + 2;
       },
       "o:",
       {"overlaps"}},
      {"lse_is_o", [](P* p) { p->lse.data = p->o.data; }, "lse:", {"overlaps o"}},
      {"lse_is_sink", [](P* p) { p->lse.data = p->sink.data; }, "lse:", {"overlaps"}},
      {"o_expanded_rows", [](P* p) { p->o.stride[1] = 0; }, "o:", {"do not overlap", "stride 0"}},
      {"o_rows_too_close", [](P* p) { p->o.stride[1] = 63; }, "o:", {"do not overlap", "63"}},
      {"o_heads_share", [](P* p) { p->o.stride[2] = 8; }, "o:", {"do not overlap", "stride 8"}},
      {"lse_expanded", [](P* p) { p->lse.stride[1] = 0; }, "lse:", {"do not overlap"}},
  };
  return bad;
}
INSTANTIATE_TEST_SUITE_P(all, ForwardOverlap, testing::ValuesIn(forward_overlaps()),
                         name_of_bad_input<fa3_forward_params>);

TEST_P(ForwardOverlap, is_refused_and_nothing_is_written) {
  ForwardCall call;
  const auto q_before = call.inputs.q.element_bits(), v_before = call.inputs.v.element_bits();
  GetParam().change(&call.params);
  EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT) << fa3_last_error();
  EXPECT_TRUE(last_error_says(GetParam().argument, GetParam().words));
  EXPECT_TRUE(call.outputs_untouched());
  EXPECT_EQ(call.inputs.q.element_bits(), q_before);
  EXPECT_EQ(call.inputs.v.element_bits(), v_before);
}

TEST(LengthsOverlap, an_output_over_a_length_array_is_refused) {
  ForwardCall call(true);
  call.params.lse.data = call.inputs.cu_q.data();
  EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("lse:", {"overlaps"}));
}

TEST(BackwardOverlap, gradients_over_inputs_or_each_other_are_refused) {
  using P = fa3_backward_params;
  const BadInput<P> bad[] = {
      {"dq_is_q", [](P* p) { p->dq = moved(p->dq, p->q); }, "dq:", {"overlaps q"}},
      {"dq_is_o", [](P* p) { p->dq = moved(p->dq, p->o); }, "dq:", {"overlaps o"}},
      {"dk_is_k", [](P* p) { p->dk = moved(p->dk, p->k); }, "dk:", {"overlaps k"}},
      {"dv_is_v", [](P* p) { p->dv = moved(p->dv, p->v); }, "dv:", {"overlaps v"}},
      {"dq_is_d_o", [](P* p) { p->dq = moved(p->dq, p->d_o); }, "dq:", {"overlaps d_o"}},
      {"dv_is_dk", [](P* p) { p->dv = moved(p->dv, p->dk); }, "dv:", {"overlaps"}},
      {"d_gate_is_o", [](P* p) { p->gate = p->d_gate = p->o; }, "d_gate:", {"overlaps o"}},
      {"dsink_is_sink",
       [](P* p) { p->dsink = moved(p->dsink, p->sink); },
       "dsink:",
       {"overlaps sink"}},
      {"dsink_is_lse",
       [](P* p) { p->dsink = moved(p->dsink, p->lse); },
       "dsink:",
       {"overlaps lse"}},
  };
  for (const BadInput<P>& one : bad) {
    BackwardCall call;
    one.change(&call.params);
    EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT) << one.name;
    EXPECT_TRUE(last_error_says(one.argument, one.words)) << one.name;
    EXPECT_TRUE(call.outputs_untouched()) << one.name;
  }
}

// The gradient of a packed (batch, seq, 3, heads, dim) qkv buffer: dq, dk and dv interleave.
TEST(BackwardOverlap, thirds_of_one_packed_buffer_are_fine_and_filled_completely) {
  BackwardCall call;
  Case c = dense_case(2, 9, 9, 2, 2, 8, 8);
  const Inputs inputs = make_inputs(c);
  const EngineUnderTest engine{.name = "auto", .id = FA3_ENGINE_AUTO};
  const ForwardRun forward = run_forward(engine, c, inputs);
  const BackwardRun apart = run_backward(engine, c, inputs, forward);
  Tensor packed({2, 9, 3 * 2, 8}, FA3_FLOAT32);
  const fa3_tensor whole = packed.dense();
  const auto third = [&](int64_t i) {
    return strided(static_cast<float*>(whole.data) + i * 16, FA3_FLOAT32, {2, 9, 2, 8},
                   {whole.stride[0], whole.stride[1], 8, 1});
  };
  fa3_backward_params params;
  fa3_backward_params_init(&params);
  params.q = inputs.q.dense();
  params.k = inputs.k.dense();
  params.v = inputs.v.dense();
  params.o = forward.o.dense();
  params.lse = forward.lse.dense_lse();
  params.d_o = inputs.d_o.dense();
  params.dq = third(0);
  params.dk = third(1);
  params.dv = third(2);
  GuardedWorkspace workspace(1 << 20);
  ASSERT_EQ(fa3_backward(&params, workspace.data(), 1 << 20, nullptr), FA3_OK) << fa3_last_error();
  EXPECT_EQ(packed.find_unwritten() + packed.find_damaged_guard(), "");
  for (int64_t row = 0; row < 9; ++row) {
    for (int64_t col = 0; col < 8; ++col) {
      EXPECT_EQ(packed.get(1, row, 1, col), apart.dq.get(1, row, 1, col));
      EXPECT_EQ(packed.get(1, row, 3, col), apart.dk.get(1, row, 1, col));
      EXPECT_EQ(packed.get(1, row, 5, col), apart.dv.get(1, row, 1, col));
    }
  }
  params.dv = third(1);
  params.dv.data = static_cast<float*>(params.dv.data) + 1;
  EXPECT_EQ(fa3_backward(&params, workspace.data(), 1 << 20, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("dv:", {"overlaps dk"}));
}

// Thirds of a buffer with padding behind every batch entry, which no common period of the strides
// explains.
TEST(BackwardOverlap, thirds_of_an_unevenly_padded_buffer_are_fine) {
  BackwardCall call;
  const int64_t third = 4 * 16, row = 3 * third + 1, batch = 10 * row + 7;
  std::vector<uint16_t> memory(2 * batch);
  const auto view = [&](int64_t i, int64_t rows, int64_t heads, int64_t dim) {
    return strided(memory.data() + i * third, FA3_FLOAT16, {2, rows, heads, dim},
                   {batch, row, 16, 1});
  };
  call.params.dq = view(0, 6, 4, 8);
  call.params.dk = view(1, 10, 2, 8);
  call.params.dv = view(2, 10, 2, 16);
  EXPECT_EQ(call.run(), FA3_OK) << fa3_last_error();
  call.params.dk.data = memory.data() + 8;  // the gaps between dq's heads
  EXPECT_EQ(call.run(), FA3_OK) << fa3_last_error();
  call.params.dk.data = memory.data() + 7;
  EXPECT_EQ(call.run(), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("dk:", {"overlaps dq"}));
}

// Where there is one entry, its stride leads nowhere.
TEST(Strides, of_an_extent_of_one_may_be_anything) {
  const Case c = dense_case(1, 9, 9, 1, 1, 8, 8);
  const Inputs inputs = make_inputs(c);
  const Tensor o(c.o_shape(), c.dtype), lse(c.lse_shape(), FA3_FLOAT32);
  fa3_forward_params params = forward_params(FA3_ENGINE_AUTO, c, inputs, o, lse);
  for (fa3_tensor* tensor : {&params.q, &params.k, &params.v, &params.o}) {
    tensor->stride[0] = -72;
    tensor->stride[2] = INT64_MIN;
  }
  params.lse.stride[0] = params.lse.stride[1] = -1;
  GuardedWorkspace workspace(1 << 20);
  EXPECT_EQ(fa3_forward(&params, workspace.data(), 1 << 20, nullptr), FA3_OK) << fa3_last_error();
  EXPECT_EQ(o.find_unwritten() + lse.find_unwritten(), "");
  params.q.stride[1] = -8;
  EXPECT_EQ(fa3_forward(&params, workspace.data(), 1 << 20, nullptr), FA3_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_says("q:", {"got -8", "flipped"}));
}

// Inputs may share memory: attention of a tensor with itself, keys that are expanded over heads.
TEST(InputOverlap, inputs_may_share_memory) {
  const Case c = dense_case(2, 9, 9, 2, 2, 8, 8);
  Inputs inputs = make_inputs(c);
  const Tensor o(c.o_shape(), c.dtype), lse(c.lse_shape(), FA3_FLOAT32);
  fa3_forward_params params = forward_params(FA3_ENGINE_AUTO, c, inputs, o, lse);
  params.k = params.v = params.q;
  params.k.stride[0] = 0;
  GuardedWorkspace workspace(1 << 20);
  EXPECT_EQ(fa3_forward(&params, workspace.data(), 1 << 20, nullptr), FA3_OK) << fa3_last_error();
}

}  // namespace
}  // namespace fa3::test
