// SPDX-License-Identifier: Apache-2.0
//
// Numbers that break careless softmax: large scores, scores that grow along the keys, long rows.
#include <gtest/gtest.h>

#include <cmath>

#include "cli/call/error_rule.h"
#include "contract/fixture.h"

namespace fa3::test {
namespace {

class Extreme : public EngineTest {};
FA3_FOR_EVERY_ENGINE(Extreme);

constexpr fa3_dtype kDtypes[] = {FA3_FLOAT32, FA3_FLOAT16, FA3_BFLOAT16};

// Scores of +-50 standard deviations: one key takes nearly all of a row.
TEST_P(Extreme, scores_fifty_times_larger) {
  for (fa3_dtype dtype : kDtypes) {
    for (bool causal : {false, true}) {
      Case c = dense_case(1, 128, 140, 2, 1, 64, 64, dtype);
      c.causal = causal;
      c.gain = 50;
      EXPECT_TRUE(agrees(c));
    }
  }
}

// FlashAttention-2's regression: large logits made dQ NaN for short sequences.
TEST_P(Extreme, large_logits_in_short_sequences) {
  for (int64_t seqlen : {1, 2, 5, 17, 128}) {
    for (fa3_dtype dtype : {FA3_FLOAT16, FA3_BFLOAT16}) {
      Case c = dense_case(1, seqlen, seqlen, 4, 4, 128, 128, dtype);
      c.gain = 15;
      c.causal = true;
      EXPECT_TRUE(agrees(c));
    }
  }
}

// Every tile brings a larger maximum than all before it, so that every rescaling happens.
Inputs growing_inputs(const Case& c, float from, float to) {
  Inputs inputs = make_inputs(c);
  for (int64_t row = 0; row < c.q.rows; ++row) inputs.q.fill_row(0, row, 1);
  for (int64_t key = 0; key < c.k.rows; ++key) {
    const auto t = static_cast<float>(key) / static_cast<float>(c.k.rows - 1);
    inputs.k.fill_row(0, key, from + (to - from) * t);
  }
  return inputs;
}

TEST_P(Extreme, scores_that_grow_or_fall_along_the_keys) {
  for (fa3_dtype dtype : kDtypes) {
    for (float reach : {1.0f, 10.0f}) {
      for (float sign : {1.0f, -1.0f}) {
        const Case c = dense_case(1, 33, 700, 2, 1, 64, 40, dtype);
        if (!does(c)) continue;
        EXPECT_TRUE(forward_agrees({engine(), c}, growing_inputs(c, -sign * reach, sign * reach)))
            << "from " << -sign * reach;
      }
    }
  }
}

TEST_P(Extreme, equal_scores_give_the_mean_of_the_values) {
  for (const Case& c : in_each_dtype(dense_case(1, 3, 1025, 1, 1, 16, 8))) {
    Inputs inputs = make_inputs(c);
    for (int64_t row = 0; row < c.q.rows; ++row) inputs.q.fill_row(0, row, 0);
    double mean[8] = {};
    for (int64_t key = 0; key < c.k.rows; ++key) {
      for (int64_t col = 0; col < 8; ++col) {
        mean[col] += double{inputs.v.get(0, key, 0, col)} / static_cast<double>(c.k.rows);
      }
    }
    const ForwardRun run = forward(c, inputs);
    for (int64_t col = 0; col < 8; ++col) {
      const double off = 1e-6 + 4 * unit_roundoff(c.dtype) * std::abs(mean[col]);
      EXPECT_NEAR(run.o.get(0, 1, 0, col), mean[col], off) << "col " << col << "; " << c;
    }
    EXPECT_NEAR(run.lse.get(0, 1, 0, 0), std::log(1025.0), 1e-5) << c;
  }
}

// Sum over keys of dV is the sum over queries of dO, because each row of P sums to one.
TEST_P(Extreme, long_float16_backward_stays_finite_and_keeps_the_sum_of_dv) {
  const int64_t seqlen =
      engine().exact || engine().rounds_scores ? 512 : by_effort(512, 4096, 8192);
  Case c = dense_case(1, seqlen, seqlen, 1, 1, 64, 64, FA3_FLOAT16);
  c.causal = true;
  if (!does_backward(c)) return;
  const Inputs inputs = make_inputs(c);
  const BackwardRun run = backward(c, inputs, forward(c, inputs));
  for (const Tensor* gradient : {&run.dq, &run.dk, &run.dv}) {
    for (double number : gradient->values().numbers) ASSERT_TRUE(std::isfinite(number));
  }
  const double noise = 0x1p-11 * std::sqrt(static_cast<double>(seqlen));
  for (int64_t col = 0; col < c.dim_v; ++col) {
    double sum_dv = 0, sum_d_o = 0;
    for (int64_t row = 0; row < seqlen; ++row) {
      sum_dv += double{run.dv.get(0, row, 0, col)};
      sum_d_o += double{inputs.d_o.get(0, row, 0, col)};
    }
    EXPECT_NEAR(sum_dv, sum_d_o, 10 * noise) << "col " << col;
  }
}

}  // namespace
}  // namespace fa3::test
