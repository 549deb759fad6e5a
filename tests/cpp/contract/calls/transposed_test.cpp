// SPDX-License-Identifier: Apache-2.0
//
// Values that are given transposed: the same bits as of rows, in every engine that reads both.
#include <gtest/gtest.h>

#include "contract/fixture.h"
#include "support/cases/fp8.h"
#include "support/runs/placement.h"

namespace fa3::test {
namespace {

class TransposedValues : public EngineTest {
 protected:
  // The case's call with v transposed; "" or why it failed.
  std::string run(const Case& c, const Inputs& inputs, Tensor* o, Tensor* lse) {
    const Tensor v = transposed_values(inputs.v);
    fa3_forward_params params = forward_params(engine().id, c, inputs, *o, *lse);
    Placement placement(engine().memory);
    place(c, inputs, o, lse, &placement, &params);
    params.v = transposed_view(v, inputs.v.shape().rows);
    params.v_transposed = 1;
    placement.input(v, &params.v);
    size_t bytes = 0;
    if (fa3_forward_workspace_size(&params, &bytes) != FA3_OK) return fa3_last_error();
    void* workspace = placement.workspace(bytes);
    if (fa3_forward(&params, workspace, bytes, nullptr) != FA3_OK) return fa3_last_error();
    const std::string damage = placement.fetch();
    return damage + o->find_unwritten() + lse->find_unwritten();
  }
};
FA3_FOR_EVERY_ENGINE(TransposedValues);

TEST_P(TransposedValues, give_the_bits_of_rows) {
  int done = 0;
  for (const auto& [queries, keys] :
       {std::pair<int64_t, int64_t>{70, 70}, {5, 200}, {300, 1}, {16, 385}, {3, 0}}) {
    for (const bool causal : {false, true}) {
      for (const int64_t dim : {64, 96, 128, 256}) {
        Case c = dense_case(2, queries, keys, 4, 2, dim, dim, FA3_FLOAT8_E4M3);
        c.causal = causal;
        c.fp8 = {.q = Scales::head, .k = Scales::block, .v = Scales::block, .v_mean = true};
        if (dim == 96) c.fp8.v = Scales::none;
        if (dim == 128) c.left = 40;
        if (dim == 256) c.sink = true;
        if (!does(c)) continue;
        const Inputs inputs = make_inputs(c);
        const ForwardRun want = forward(c, inputs);
        Tensor o(c.o_shape(), c.o_dtype()), lse(c.lse_shape(), FA3_FLOAT32);
        const std::string problem = run(c, inputs, &o, &lse);
        if (problem.starts_with("no engine can run this call")) {
          leave_out(problem);
          continue;
        }
        EXPECT_EQ(problem, "") << c;
        EXPECT_EQ(o.element_bits(), want.o.element_bits()) << c;
        EXPECT_EQ(lse.element_bits(), want.lse.element_bits()) << c;
        ++done;
      }
    }
  }
  if (done == 0) GTEST_SKIP() << engine().name << " reads no transposed values";
}

}  // namespace
}  // namespace fa3::test
