// SPDX-License-Identifier: Apache-2.0
//
// Numbers near the ends of float's range: values whose sums overflow though their mean does not,
// and the largest and smallest scalars that the interface allows.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string_view>

#include "contract/fixture.h"
#include "support/limits.h"

namespace fa3::test {
namespace {

class Range : public EngineTest {};
FA3_FOR_EVERY_ENGINE(Range);

constexpr float kLargest = std::numeric_limits<float>::max();

// Every row of the case has the value `want` in every column.
void expect_everywhere(const Case& c, const ForwardRun& run, double want, double allowed) {
  for (int64_t row = 0; row < c.q.rows; ++row) {
    for (int64_t col = 0; col < c.dim_v; ++col) {
      ASSERT_NEAR(run.o.get(0, row, 0, col), want, allowed * std::abs(want)) << c;
    }
  }
}

double roundoff(fa3_dtype dtype) {
  return dtype == FA3_FLOAT32 ? 1e-5 : 0x1p-7;
}

void fill(Tensor* tensor, float value) {
  for (int64_t row = 0; row < tensor->shape().rows; ++row) tensor->fill_row(0, row, value);
}

// On most engines the sum of the values is beyond float32, their mean is not.
TEST_P(Range, the_mean_of_large_values_is_finite) {
  for (fa3_dtype dtype : {FA3_FLOAT32, FA3_BFLOAT16}) {
    for (int64_t seqlen_q : {1, 20, 100}) {
      const Case c = dense_case(1, seqlen_q, 512, 1, 1, 64, 64, dtype);
      if (!does(c)) continue;
      Inputs inputs = make_inputs(c);
      fill(&inputs.q, 0);
      fill(&inputs.v, engine().large);
      const double value = inputs.v.get(0, 0, 0, 0);
      const ForwardRun run = forward(c, inputs);
      expect_everywhere(c, run, value, roundoff(dtype));
      ASSERT_NEAR(run.lse.get(0, 0, 0, 0), std::log(512.0), 1e-5);
    }
  }
}

// A late key scores 9.5 above all others: a weight of 13,000 relative to the first reference.
TEST_P(Range, a_late_key_with_a_large_weight_does_not_overflow) {
  for (fa3_dtype dtype : {FA3_FLOAT32, FA3_BFLOAT16}) {
    for (int64_t seqlen_q : {1, 20, 100}) {
      Case c = dense_case(1, seqlen_q, 512, 1, 1, 64, 64, dtype);
      c.scale = 0.125f;
      if (!does(c)) continue;
      Inputs inputs = make_inputs(c);
      fill(&inputs.q, 1);
      fill(&inputs.k, 0);
      inputs.k.fill_row(0, 400, 1.1875f);
      fill(&inputs.v, 1e35f);
      expect_everywhere(c, forward(c, inputs), inputs.v.get(0, 0, 0, 0), roundoff(dtype));
    }
  }
}

// Half of the rows overflow, the others must not notice.
TEST_P(Range, rows_that_overflow_leave_the_bits_of_the_others) {
  Case c = dense_case(1, 120, 512, 1, 1, 64, 64);
  if (!does(c)) return;
  Inputs inputs = make_inputs(c);
  for (int64_t row = 0; row < 120; ++row) inputs.q.fill_row(0, row, 8);
  fill(&inputs.k, 0);
  inputs.k.fill_row(0, 3, 1);  // leads by 64
  fill(&inputs.v, 1e37f);
  const ForwardRun want = forward(c, inputs);
  for (int64_t row = 1; row < 120; row += 2) inputs.q.fill_row(0, row, 0);
  const ForwardRun run = forward(c, inputs);
  for (int64_t row = 0; row < 120; ++row) {
    for (int64_t col = 0; col < 64; ++col) {
      const float value = run.o.get(0, row, 0, col);
      ASSERT_NEAR(value, 1e37, 1e32) << "row " << row;
      const float alone = want.o.get(0, row, 0, col);
      ASSERT_TRUE(row % 2 == 1 || value == alone) << "row " << row;
    }
  }
}

TEST_P(Range, gradients_of_large_values_are_finite) {
  for (fa3_dtype dtype : {FA3_FLOAT32, FA3_BFLOAT16}) {
    const Case c = dense_case(1, 100, 512, 1, 1, 64, 64, dtype);
    if (!does_backward(c)) continue;
    Inputs inputs = make_inputs(c);
    fill(&inputs.q, 0);
    fill(&inputs.v, 1e35f);
    const BackwardRun run = backward(c, inputs, forward(c, inputs));
    for (const Tensor* gradient : {&run.dq, &run.dk, &run.dv}) {
      for (double number : gradient->values().numbers) ASSERT_TRUE(std::isfinite(number)) << c;
    }
  }
}

// Finite; and where the sink takes the whole row, the LSE is the sink: its gradient is the LSE's.
void expect_gradients_of_a_sink(const Case& c, const Inputs& inputs, float sink,
                                const BackwardRun& run) {
  for (const Tensor* each : {&run.dq, &run.dk, &run.dv, &run.dsink}) {
    for (double number : each->values().numbers) ASSERT_TRUE(std::isfinite(number)) << c;
  }
  if (sink < 0) return;
  double want = 0;
  for (int64_t row = 0; row < c.q.rows; ++row) want += double{inputs.d_lse.get(0, row, 1, 0)};
  EXPECT_NEAR(run.dsink.get(0, 0, 1, 0), want, 1e-5 * static_cast<double>(c.q.rows)) << c;
}

// Whether the dot products of bfloat16 that this engine uses take subnormal numbers for zero, or
// begin with weights of 2^-24.
bool flushes_bfloat16(const EngineUnderTest& engine) {
  const std::string_view name = engine.name;
  if (name == "hopper" || name == "ampere") return true;
  fa3_engine_info info;
  for (int32_t i = 0; fa3_engine(i, &info) == FA3_OK; ++i) {
    const std::string_view detail = info.detail;
    if (std::string_view(info.name) != engine.name) continue;
    return detail.find("_bf16") != detail.npos || detail.find("amx") != detail.npos;
  }
  return false;
}

TEST_P(Range, subnormal_values_count) {
  for (fa3_dtype dtype : {FA3_FLOAT32, FA3_FLOAT16, FA3_BFLOAT16}) {
    for (int64_t seqlen_q : {1, 100}) {
      const Case c = dense_case(1, seqlen_q, 1, 1, 1, 64, 64, dtype);
      if (!does(c)) continue;
      Inputs inputs = make_inputs(c);
      fill(&inputs.v, dtype == FA3_FLOAT16 ? 0x1p-20f : 0x1p-130f);
      const ForwardRun run = forward(c, inputs);
      const float value = run.o.get(0, 0, 0, 0);
      const bool flushed = dtype == FA3_BFLOAT16 && flushes_bfloat16(engine()) && value == 0;
      EXPECT_TRUE(flushed || value == inputs.v.get(0, 0, 0, 0)) << c << ": got " << value;
    }
  }
}

// Queries and keys so small that their products with the largest scale are ordinary scores.
TEST_P(Range, the_largest_scale) {
  for (int64_t seqlen_q : {1, 100}) {
    Case c = dense_case(1, seqlen_q, 300, 1, 1, 64, 64);
    c.scale = 3e38f;
    if (!does_backward(c)) continue;
    Inputs inputs = make_inputs(c);
    for (Tensor* tensor : {&inputs.q, &inputs.k}) {
      for (int64_t row = 0; row < tensor->shape().rows; ++row) {
        for (int64_t col = 0; col < 64; ++col) {
          tensor->set(0, row, 0, col, tensor->get(0, row, 0, col) * 2e-20f);
        }
      }
    }
    EXPECT_TRUE(forward_agrees({engine(), c}, inputs));
    fill(&inputs.q, 0);  // 0 * scale is 0
    EXPECT_TRUE(backward_agrees({engine(), c}, inputs));
  }
}

// Whatever the element type: products of zero are scores of zero.
TEST_P(Range, the_largest_scale_of_zeros_is_zero) {
  for (int64_t seqlen_q : {1, 100}) {
    for (int num_splits : {0, 3}) {
      Case shape = dense_case(1, seqlen_q, 700, 2, 1, 64, 64);
      shape.scale = kLargest;
      shape.num_splits = num_splits;
      for (const Case& c : in_each_dtype(shape)) {
        Inputs inputs = make_inputs(c);
        fill(&inputs.q, 0);
        fill(&inputs.v, 2);
        const Runs run = both(c, inputs);
        expect_everywhere(c, run.forward, 2, roundoff(c.dtype));
        EXPECT_NEAR(run.forward.lse.get(0, 0, 0, 0), std::log(700.0), 1e-5) << c;
        if (!run.backward) continue;
        for (double number : run.backward->dq.values().numbers) {
          ASSERT_FALSE(std::isnan(number)) << c;
        }
      }
    }
  }
}

TEST_P(Range, the_largest_and_the_smallest_softcap) {
  for (int64_t seqlen_q : {1, 100}) {
    for (float softcap : {3e38f, 1e30f, 1e-42f}) {
      Case c = dense_case(1, seqlen_q, 300, 1, 1, 64, 64);
      c.softcap = softcap;
      c.gain = 4 / double{softcap};  // queries of size 1, not of the softcap's
      if (!does_backward(c)) continue;
      EXPECT_TRUE(forward_agrees({engine(), c}));
      EXPECT_TRUE(backward_agrees({engine(), c}));
    }
  }
}

// A sink above all scores takes the whole row, also if it is infinite, and whether the keys are
// split or not.
TEST_P(Range, the_largest_and_the_smallest_sink) {
  for (int64_t seqlen_q : {1, 100}) {
    for (float sink : {kInfinity, 3e38f, kLargest, -3e38f, -kLargest}) {
      for (int num_splits : {0, 3}) {
        Case shape = dense_case(1, seqlen_q, 700, 2, 1, 64, 64);
        shape.sink = shape.d_lse = true;
        shape.num_splits = num_splits;
        for (const Case& c : in_each_dtype(shape)) {
          Inputs inputs = make_inputs(c);
          for (int64_t head = 0; head < 2; ++head) inputs.sink.set(0, 0, 0, head, sink);
          const Runs run = both(c, inputs);
          if (sink > 0) {
            expect_everywhere(c, run.forward, 0, 0);
            for (int64_t row = 0; row < seqlen_q; ++row) {
              EXPECT_EQ(run.forward.lse.get(0, row, 1, 0), sink) << c;
            }
          } else {
            EXPECT_TRUE(forward_agrees({engine(), c}, inputs));
          }
          if (run.backward) expect_gradients_of_a_sink(c, inputs, sink, *run.backward);
        }
      }
    }
  }
}

// The sink is all that such a row has: O = 0, LSE = sink.
TEST_P(Range, a_row_without_keys_has_its_sink_as_lse) {
  for (int64_t seqlen_q : {1, 100}) {
    for (float sink : {kInfinity, 3e38f, 1.5f, -3e38f, -kLargest}) {
      Case c = dense_case(1, seqlen_q, 0, 1, 1, 64, 64);
      c.sink = true;
      if (!does(c)) continue;
      Inputs inputs = make_inputs(c);
      inputs.sink.set(0, 0, 0, 0, sink);
      const ForwardRun run = forward(c, inputs);
      expect_everywhere(c, run, 0, 0);
      EXPECT_EQ(run.lse.get(0, 0, 0, 0), sink) << c;
    }
  }
}

}  // namespace
}  // namespace fa3::test
