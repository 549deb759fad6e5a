// SPDX-License-Identifier: Apache-2.0
//
// Where calls of the command run, and what is asked before memory is touched. The GPU's half runs
// on a GPU: tests/cuda/command_check.py.
#include "cli/call/execution.h"

#include <gtest/gtest.h>

#include "cli/call/calls.h"
#include "cli/call/compare.h"

namespace fa3::cli {
namespace {

constexpr Shape kShape{.batch = 2,
                       .heads = 4,
                       .kv_heads = 2,
                       .seqlen_q = 19,
                       .seqlen_k = 33,
                       .head_dim = 16,
                       .head_dim_v = 24};

Operands filled(fa3_dtype dtype) {
  Operands operands = make_operands(kShape, dtype, Layout::bshd, {.backward = true});
  fill_inputs(&operands, 3);
  return operands;
}

fa3_options with_engine(int32_t engine) {
  fa3_options options = default_options();
  options.engine = engine;
  return options;
}

TEST(Execution, on_the_cpu_is_the_call_itself) {
  Operands direct = filled(FA3_BFLOAT16), executed = filled(FA3_BFLOAT16);
  const fa3_options options = with_engine(FA3_ENGINE_CPU);
  Workspace workspace;
  run_seconds(forward_args(direct, options), &workspace);
  run_seconds(backward_args(direct, options), &workspace);
  Execution execution(&executed, options);
  EXPECT_GT(execution.forward(), 0);
  EXPECT_GT(execution.backward(), 0);
  execution.fetch();
  EXPECT_EQ(max_abs_error(executed.o, direct.o), 0);
  EXPECT_EQ(max_abs_error(executed.lse, direct.lse), 0);
  EXPECT_EQ(max_abs_error(executed.dk, direct.dk), 0);
}

TEST(Question, has_shapes_and_the_engines_memory_but_no_address) {
  const Operands operands = filled(FA3_BFLOAT16);
  for (const int32_t engine : {FA3_ENGINE_AUTO, FA3_ENGINE_STANDARD, FA3_ENGINE_HOPPER}) {
    const BackwardArgs args = backward_question(operands, with_engine(engine));
    for (const fa3_tensor* tensor :
         {&args.q, &args.k, &args.v, &args.o, &args.lse, &args.d_o, &args.dq, &args.dk, &args.dv}) {
      EXPECT_EQ(tensor->data, nullptr);
      EXPECT_EQ(tensor->device_type, engine == FA3_ENGINE_HOPPER ? FA3_CUDA : FA3_CPU);
    }
    EXPECT_EQ(args.k.shape[1], kShape.seqlen_k);
  }
}

TEST(Question, is_answered_as_the_call_would_be) {
  const Operands operands = filled(FA3_FLOAT32);
  const fa3_options options = with_engine(FA3_ENGINE_CPU);
  EXPECT_EQ(workspace_bytes(forward_question(operands, options)),
            workspace_bytes(forward_args(operands, options)));
  EXPECT_EQ(plan_text(backward_question(operands, options)),
            plan_text(backward_args(operands, options)));
}

TEST(Question, about_hopper_is_never_refused_for_lying_in_host_memory) {
  const Operands operands = filled(FA3_BFLOAT16);
  const Status status = supported(forward_question(operands, with_engine(FA3_ENGINE_HOPPER)));
  EXPECT_EQ(status.message().find("never moves data"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace fa3::cli
