// SPDX-License-Identifier: Apache-2.0
//
// The oracle that GPUs compute, on the host: its numbers are the textbook's, and its baseline errs
// as the standard engine does.
#include <gtest/gtest.h>

#include <string>

#include "support/cases/kernel_cases.h"
#include "support/oracle/forward_oracle.h"

namespace fa3::test {
namespace {

TEST(ForwardOracle, is_the_textbook_and_errs_as_the_baseline) {
  int done = 0;
  for (const fa3_dtype dtype : {FA3_BFLOAT16, FA3_FLOAT16, FA3_FLOAT32}) {
    for (auto& [name, c] : kernel_cases(32, 24, dtype)) {
      if (c.q.tensor_rows() * c.k.tensor_rows() * c.batch * c.heads_q > 300000) continue;
      if (++done % 2 == 0 && c.scores != Scores::nan_value) {
        c.dropout_p = 0.3f, c.dropout_seed = c.seed, c.dropout_offset = 3;
      }
      SCOPED_TRACE(std::string(name) + " " + describe(c));
      const Inputs inputs = make_forward_inputs(c);
      const ForwardRun run = run_forward(baseline(), c, inputs);
      ASSERT_EQ(run.problem, "");
      EXPECT_TRUE(oracle_does(c));
      EXPECT_TRUE(same_truth(forward_truth_on_host(c, inputs), {textbook_forward(c, inputs), run}));
    }
  }
  EXPECT_GT(done, 60);
}

TEST(ForwardOracle, of_another_case_is_not_the_same) {
  const Case c = dense_case(1, 40, 60, 2, 1, 32, 24, FA3_BFLOAT16);
  Case other = c;
  other.causal = true;
  const Inputs inputs = make_forward_inputs(c);
  const Truth truth = forward_truth_on_host(c, inputs);
  EXPECT_FALSE(same_truth(forward_truth_on_host(other, inputs), truth));
  Truth off = forward_truth_on_host(c, inputs);
  EXPECT_TRUE(same_truth(off, truth));
  off.baseline.o.set(0, 7, 1, 3, 1.0f);
  EXPECT_FALSE(same_truth(off, truth));
}

}  // namespace
}  // namespace fa3::test
