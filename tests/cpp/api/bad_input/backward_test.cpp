// SPDX-License-Identifier: Apache-2.0
//
// Every wrong backward call gets a status and one sentence, and changes nothing. The rules that
// forward and backward share are tested with the forward; here a sample of them, and its own.
#include <gtest/gtest.h>

#include "api/calls.h"

namespace fa3::test::backward_bad_input {
namespace {

using P = fa3_backward_params;
using Bad = BadInput<P>;

const std::vector<Bad>& bad_inputs() {
  static const std::vector<Bad> bad = {
      {"q_rank", [](P* p) { p->q.rank = 2; }, "q:", {"expected rank 4", "got rank 2"}},
      {"v_rank_huge", [](P* p) { p->v.rank = 1 << 30; }, "v:", {"expected rank 4"}},
      {"scale", [](P* p) { p->options.scale = 0; }, "scale:", {"got 0"}},
      {"no_lse", [](P* p) { p->lse = {}; }, "lse:", {"forward's result", "got nothing"}},
      {"lse_null", [](P* p) { p->lse.data = nullptr; }, "lse:", {"null pointer"}},
      {"no_d_o", [](P* p) { p->d_o = {}; }, "d_o:", {"rank 4", "got rank 0"}},
      {"d_o_rows", [](P* p) { p->d_o.shape[1] = 7; }, "d_o:", {"seq = 6", "got 7"}},
      {"d_o_dim", [](P* p) { p->d_o.shape[3] = 8; }, "d_o:", {"head dim = 16", "got 8"}},
      {"d_o_dtype", [](P* p) { p->d_o.dtype = FA3_FLOAT32; }, "d_o:", {"dtype of o", "float32"}},
      {"d_o_stride", [](P* p) { p->d_o.stride[3] = 3; }, "d_o:", {"stride 1", "got 3"}},
      {"d_o_null", [](P* p) { p->d_o.data = nullptr; }, "d_o:", {"null pointer"}},
      {"no_dq", [](P* p) { p->dq = {}; }, "dq:", {"rank 4", "got rank 0"}},
      {"dq_null", [](P* p) { p->dq.data = nullptr; }, "dq:", {"null pointer"}},
      {"dq_heads", [](P* p) { p->dq.shape[2] = 2; }, "dq:", {"heads = 4", "got 2"}},
      {"dk_heads", [](P* p) { p->dk.shape[2] = 4; }, "dk:", {"heads = 2", "got 4"}},
      {"dk_dim", [](P* p) { p->dk.shape[3] = 16; }, "dk:", {"head dim = 8", "got 16"}},
      {"dv_dim", [](P* p) { p->dv.shape[3] = 8; }, "dv:", {"head dim = 16", "got 8"}},
      {"dv_batch", [](P* p) { p->dv.shape[0] = 1; }, "dv:", {"batch = 2", "got 1"}},
      {"dq_dtype", [](P* p) { p->dq.dtype = FA3_BFLOAT16; }, "dq:", {"float16", "got bfloat16"}},
      {"dk_dtype", [](P* p) { p->dk.dtype = FA3_BFLOAT16; }, "dk:", {"float16", "got bfloat16"}},
      {"dv_device", [](P* p) { p->dv.device_type = FA3_CUDA; }, "dv:", {"cpu", "got cuda"}},
      {"dsink_alone", [](P* p) { p->sink = {}; }, "dsink:", {"together with sink"}},
      {"dsink_heads", [](P* p) { p->dsink.shape[0] = 2; }, "dsink:", {"query heads = 4", "got 2"}},
      {"dsink_dtype", [](P* p) { p->dsink.dtype = FA3_FLOAT16; }, "dsink:", {"float32"}},
      {"dsink_null", [](P* p) { p->dsink.data = nullptr; }, "dsink:", {"null pointer"}},
      {"d_gate_alone", [](P* p) { p->d_gate = p->d_o; }, "d_gate:", {"together with gate"}},
      {"d_gate_dtype",
       [](P* p) { (p->d_gate = p->gate = p->d_o).dtype = FA3_FLOAT32; },
       "d_gate:",
       {"the dtype of gate, float16", "got float32"}},
      {"d_gate_columns",
       [](P* p) { (p->d_gate = p->gate = p->d_o).shape[3] = 1; },
       "d_gate:",
       {"head dim = 16", "got 1"}},
      {"d_lse_rank", [](P* p) { (p->d_lse = p->lse).rank = 2; }, "d_lse:", {"expected rank 3"}},
      {"d_lse_heads",
       [](P* p) { (p->d_lse = p->lse).shape[1] = 3; },
       "d_lse:",
       {"query heads = 4", "got 3"}},
      {"d_lse_dtype",
       [](P* p) { (p->d_lse = p->lse).dtype = FA3_FLOAT16; },
       "d_lse:",
       {"float32", "got float16"}},
      {"d_lse_null", [](P* p) { (p->d_lse = p->lse).data = nullptr; }, "d_lse:", {"null pointer"}},
      {"d_lse_under_dq",
       [](P* p) { (p->d_lse = p->lse).data = p->dq.data; },
       "dq:",
       {"overlaps d_lse"}},
      {"accumulate_dq", [](P* p) { p->accumulate_dq = 2; }, "accumulate_dq:", {"0 or 1", "got 2"}},
      {"accumulate_dkv", [](P* p) { p->accumulate_dkv = -1; }, "accumulate_dkv:", {"got -1"}},
      {"narrow_sums",
       [](P* p) { p->accumulate_dq = 1; },
       "dq:",
       {"float32 with accumulate_dq", "got float16"}},
      {"dk_expanded", [](P* p) { p->dk.stride[1] = 0; }, "dk:", {"do not overlap", "stride 0"}},
  };
  return bad;
}

class BackwardBadInput : public testing::TestWithParam<Bad> {};
INSTANTIATE_TEST_SUITE_P(all, BackwardBadInput, testing::ValuesIn(bad_inputs()),
                         name_of_bad_input<P>);

TEST_P(BackwardBadInput, is_explained_and_changes_nothing) {
  BackwardCall call;
  GetParam().change(&call.params);
  EXPECT_EQ(call.run(), GetParam().status) << fa3_last_error();
  EXPECT_TRUE(last_error_says(GetParam().argument, GetParam().words));
  EXPECT_TRUE(call.outputs_untouched());
}

TEST(BackwardCallItself, is_valid_before_it_is_changed) {
  for (bool packed : {false, true}) {
    BackwardCall call(packed);
    EXPECT_EQ(call.run(), FA3_OK) << fa3_last_error();
    for (const Tensor* gradient : {&call.dq, &call.dk, &call.dv, &call.dsink}) {
      EXPECT_EQ(gradient->find_unwritten() + gradient->find_damaged_guard(), "");
    }
  }
}

TEST(BackwardCallItself, takes_a_sink_without_its_gradient) {
  BackwardCall call;
  call.params.dsink = {};
  EXPECT_EQ(call.run(), FA3_OK) << fa3_last_error();
  EXPECT_TRUE(call.dsink.untouched());
}

// Shapes that fit in 64 bits while the memory for them would not.
TEST(BackwardCallItself, refuses_or_counts_workspaces_beyond_any_memory) {
  const int64_t rows = int64_t{1} << 40, heads = 1024, dim = 512;
  for (int32_t engine : {FA3_ENGINE_AUTO, FA3_ENGINE_REFERENCE, FA3_ENGINE_STANDARD}) {
    P params;
    fa3_backward_params_init(&params);
    params.options.engine = engine;
    params.options.num_threads = 1024;
    const auto view = [](std::vector<int64_t> shape, int32_t dtype) {
      fa3_tensor tensor{nullptr, dtype, FA3_CPU, 0, static_cast<int32_t>(shape.size()), {}, {}};
      int64_t step = 1;
      for (size_t i = shape.size(); i-- > 0;) {
        tensor.shape[i] = shape[i];
        tensor.stride[i] = step;
        step *= shape[i];
      }
      return tensor;
    };
    params.q = params.o = params.d_o = params.dq = view({1, 1, heads, dim}, FA3_FLOAT32);
    params.k = params.v = params.dk = params.dv = view({1, rows, heads, dim}, FA3_FLOAT32);
    params.lse = view({1, heads, 1}, FA3_FLOAT32);
    size_t bytes = 0;
    const fa3_status status = fa3_backward_workspace_size(&params, &bytes);
    if (status == FA3_OK) {
      EXPECT_LE(bytes, size_t{1} << 62) << "engine " << engine << " overflowed";
    } else {
      EXPECT_EQ(status, FA3_UNSUPPORTED) << fa3_last_error();
    }
  }
}

}  // namespace
}  // namespace fa3::test::backward_bad_input
