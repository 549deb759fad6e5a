// SPDX-License-Identifier: Apache-2.0
#include "api/calls.h"

namespace fa3::test {
namespace {

Case small_case(bool packed) {
  Case c = dense_case(2, 6, 10, 4, 2, 8, 16, FA3_FLOAT16);
  c.sink = true;
  if (packed) {
    c.q = {.owned = {2, 4}};
    c.k = {.owned = {7, 3}};
  }
  return c;
}

}  // namespace

ForwardCall::ForwardCall(bool packed)
    : c(small_case(packed)),
      inputs(make_inputs(c)),
      o(c.o_shape(), c.dtype),
      lse(c.lse_shape(), FA3_FLOAT32),
      workspace(kWorkspaceBytes),
      params(forward_params(FA3_ENGINE_AUTO, c, inputs, o, lse)) {}

BackwardCall::BackwardCall(bool packed)
    : forward(packed),
      dq(forward.c.q_shape(), forward.c.dtype),
      dk(forward.c.k_shape(), forward.c.dtype),
      dv(forward.c.v_shape(), forward.c.dtype),
      dsink({1, 1, forward.c.heads_q, 1}, FA3_FLOAT32) {
  EXPECT_EQ(forward.run(), FA3_OK) << fa3_last_error();
  const auto view = [&](const Tensor& tensor) { return packed ? tensor.packed() : tensor.dense(); };
  const fa3_forward_params& from = forward.params;
  fa3_backward_params_init(&params);
  params.options = from.options;
  params.q = from.q;
  params.k = from.k;
  params.v = from.v;
  params.o = from.o;
  params.lse = from.lse;
  params.sink = from.sink;
  params.d_o = view(forward.inputs.d_o);
  params.dq = view(dq);
  params.dk = view(dk);
  params.dv = view(dv);
  params.dsink = dsink.head_vector();
}

testing::AssertionResult last_error_says(const std::string& argument,
                                         const std::vector<std::string>& words) {
  const std::string said = fa3_last_error();
  if (said.rfind(argument, 0) != 0) {
    return testing::AssertionFailure() << "expected a sentence about " << argument << ": " << said;
  }
  for (const std::string& word : words) {
    if (said.find(word) == std::string::npos) {
      return testing::AssertionFailure() << "expected \"" << word << "\" in: " << said;
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace fa3::test
