// SPDX-License-Identifier: Apache-2.0
//
// The output gate and the max logit against the textbook: each alone and both together, in lengths
// next to every block size and with every other feature.
#include <gtest/gtest.h>

#include <vector>

#include "contract/fixture.h"
#include "support/runs/sample.h"

namespace fa3::test {
namespace {

class OutputGate : public EngineTest {};
FA3_FOR_EVERY_ENGINE(OutputGate);
class MaxLogit : public EngineTest {};
FA3_FOR_EVERY_ENGINE(MaxLogit);

Case with_gate(Case c, Gate gate, fa3_dtype dtype) {
  c.gate = gate;
  c.gate_dtype = dtype;
  return c;
}

Case with_max_logit(Case c) {
  c.max_logit = true;
  return c;
}

// Everything that a mask and lengths can do.
Case every_feature() {
  Case c = dense_case(3, 0, 0, 4, 2, 24, 32);
  c.q = {.owned = {130, 3, 211}, .spare_rows = 4, .used = {101, 3, 200}};
  c.k = {.owned = {300, 1, 213}, .spare_rows = 2, .used = {280, 0, 213}};
  c.left = 200;
  c.right = 3;
  c.softcap = 5;
  c.sink = c.d_lse = true;
  return c;
}

TEST_P(OutputGate, of_any_type_and_lengths_next_to_a_block) {
  for (int64_t seqlen_q : {1, 9, 97}) {
    for (int64_t seqlen_k : {1, 193}) {
      for (const Case& c : in_each_dtype(dense_case(1, seqlen_q, seqlen_k, 2, 1, 24, 40))) {
        EXPECT_TRUE(agrees(with_gate(c, Gate::full, FA3_FLOAT32)));
        EXPECT_TRUE(agrees(with_gate(c, Gate::one, c.dtype)));
      }
    }
  }
}

TEST_P(OutputGate, with_every_feature) {
  for (const Case& c : in_each_dtype(every_feature())) {
    Case padded = with_gate(c, Gate::full, FA3_FLOAT16);
    padded.in = Layout::padded;
    EXPECT_TRUE(agrees(padded));
    EXPECT_TRUE(agrees(with_gate(c, Gate::one, FA3_BFLOAT16)));
  }
}

TEST_P(OutputGate, with_dropout_and_splits) {
  for (Case c : in_each_dtype(dense_case(2, 7, 1100, 8, 2, 32, 32))) {
    c.num_splits = 3;
    EXPECT_TRUE(agrees(with_gate(c, Gate::full, FA3_FLOAT32)));
    c.num_splits = 0;
    c.dropout_p = 0.3f;
    EXPECT_TRUE(agrees(with_gate(c, Gate::one, FA3_FLOAT32)));
  }
}

TEST_P(OutputGate, of_an_output_in_float32) {
  for (Case c : in_each_dtype(dense_case(2, 70, 150, 2, 2, 64, 64))) {
    c.o_float32 = true;
    EXPECT_TRUE(agrees(with_gate(c, Gate::full, FA3_FLOAT32)));
  }
}

TEST_P(OutputGate, over_float8_keys) {
  for (fa3_dtype dtype : {FA3_FLOAT8_E4M3, FA3_BFLOAT16, FA3_FLOAT32}) {
    Case c = dense_case(2, 70, 300, 4, 2, 64, 64, dtype);
    c.fp8 = {.kv = true, .q = Scales::head, .k = Scales::block, .v = Scales::head};
    if (dtype != FA3_FLOAT8_E4M3) c.fp8.q = Scales::none;
    c = with_gate(with_max_logit(c), Gate::full, FA3_BFLOAT16);
    EXPECT_TRUE(!does(c) || forward_agrees({engine(), c}));
  }
}

// A gate that is shut, and one that is wide open.
TEST_P(OutputGate, of_infinite_logits_is_zero_or_one) {
  for (Case c : in_each_dtype(dense_case(1, 40, 90, 2, 1, 64, 64))) {
    const Case gated = with_gate(c, Gate::one, FA3_FLOAT32);
    if (!does_backward(gated)) continue;
    Inputs inputs = make_inputs(gated);
    for (int64_t row = 0; row < 40; ++row) {
      for (int64_t head = 0; head < 2; ++head) {
        inputs.gate.set(0, row, head, 0, head == 0 ? -INFINITY : INFINITY);
      }
    }
    const Runs plain = both(c, inputs), shut = both(gated, inputs);
    for (int64_t row = 0; row < 40; ++row) {
      for (int64_t col = 0; col < 64; ++col) {
        EXPECT_EQ(shut.forward.o.get(0, row, 0, col), 0);
        EXPECT_EQ(shut.forward.o.get(0, row, 1, col), plain.forward.o.get(0, row, 1, col));
      }
      for (int64_t head : {0, 1}) EXPECT_EQ(shut.backward->d_gate.get(0, row, head, 0), 0);
    }
    EXPECT_TRUE(bits_equal("lse", shut.forward.lse, plain.forward.lse));
  }
}

// The first 30 rows see no key, in splits and beside a sink too.
TEST_P(OutputGate, of_nan_leaves_a_row_without_keys_at_zero) {
  for (Case c : in_each_dtype(dense_case(1, 300, 270, 2, 1, 64, 64))) {
    c.causal = true;
    for (int i = 0; i < 4; ++i) {
      c.sink = i % 2 == 1;
      c.num_splits = i / 2 == 1 ? 3 : 1;
      const Case gated = with_gate(c, Gate::one, FA3_FLOAT32);
      if (!does(gated)) continue;
      Inputs inputs = make_inputs(gated);
      const Tensor usual = forward(gated, inputs).o;
      for (int64_t row = 0; row < 30; ++row) inputs.gate.set(0, row, row % 2, 0, NAN);
      const Tensor o = forward(gated, inputs).o;
      EXPECT_TRUE(bits_equal("o", o, usual)) << gated;
      EXPECT_EQ(o.get(0, 29, 1, 63), 0);
      EXPECT_NE(o.get(0, 30, 1, 63), 0);
      if (!does_backward(gated)) continue;
      if (engine().memory != FA3_CPU) {
        leave_out("gradients beside a gate that is NaN: kernels do not keep it from other rows");
        continue;
      }
      const BackwardRun found = backward(gated, inputs, forward(gated, inputs));
      EXPECT_TRUE(std::isfinite(found.dk.get(0, 0, 0, 0))) << gated;
      EXPECT_TRUE(std::isfinite(found.dv.get(0, 0, 0, 0))) << gated;
      EXPECT_EQ(found.d_gate.get(0, 29, 1, 0), 0) << gated;
    }
  }
}

TEST_P(OutputGate, has_the_same_gradient_in_every_call) {
  for (Case c : in_each_dtype(dense_case(2, 150, 300, 4, 2, 64, 64))) {
    c = with_gate(c, Gate::one, FA3_FLOAT32);
    if (!does_backward(c)) continue;
    const Inputs inputs = make_inputs(c);
    const ForwardRun at = forward(c, inputs);
    const BackwardRun first = backward(c, inputs, at, false);
    EXPECT_TRUE(bits_equal("d_gate", backward(c, inputs, at, false).d_gate, first.d_gate)) << c;
  }
}

TEST_P(OutputGate, and_max_logit_of_random_calls) {
  for (uint64_t i = 0; i < by_effort<uint64_t>(12, 40, 600); ++i) {
    Case c = random_case(engine(), 75000 + i);
    c.gate = i % 2 == 0 ? Gate::full : Gate::one;
    c.gate_dtype = i % 3 == 0 ? FA3_FLOAT16 : FA3_FLOAT32;
    c.max_logit = true;
    EXPECT_TRUE(agrees(c));
  }
}

TEST_P(MaxLogit, in_lengths_next_to_a_block) {
  for (int64_t seqlen_q : {1, 5, 9, 97}) {
    for (int64_t seqlen_k : {1, 193, 530}) {
      for (Case c : in_each_dtype(dense_case(1, seqlen_q, seqlen_k, 4, 2, 24, 40))) {
        c.causal = seqlen_k > 1;
        c.max_logit = true;
        EXPECT_TRUE(!does(c) || forward_agrees({engine(), c}));
      }
    }
  }
}

// A window that leaves rows without keys, sequences without any, and a softcap.
TEST_P(MaxLogit, is_of_pairs_that_are_seen_and_before_the_softcap) {
  for (const Case& c : in_each_dtype(every_feature())) {
    EXPECT_TRUE(agrees(with_gate(with_max_logit(c), Gate::full, FA3_FLOAT32)));
  }
  for (Case c : in_each_dtype(dense_case(2, 200, 400, 4, 2, 64, 64))) {
    c.mask = {.on = true, .by_sequence = true, .by_head = true};
    EXPECT_TRUE(agrees(with_max_logit(c)));
  }
}

TEST_P(MaxLogit, of_keys_in_splits) {
  for (Case c : in_each_dtype(dense_case(2, 7, 1100, 8, 2, 32, 32))) {
    c.num_splits = 3;
    EXPECT_TRUE(agrees(with_max_logit(c)));
  }
}

// Far beyond what a guarded softmax keeps as its reference, and below 0.
TEST_P(MaxLogit, of_scores_that_rise_or_lie_far_apart) {
  for (Scores scores : {Scores::huge, Scores::rising, Scores::falling, Scores::last_key}) {
    for (Case c : in_each_dtype(dense_case(1, 70, 530, 2, 1, 64, 64))) {
      c.scores = scores;
      c.amount = 60;
      c.max_logit = true;
      EXPECT_TRUE(!does(c) || forward_agrees({engine(), c}));
    }
  }
}

TEST_P(MaxLogit, is_nan_where_a_seen_score_is) {
  for (Scores scores : {Scores::nan_query, Scores::nan_key, Scores::inf_key, Scores::no_weight}) {
    for (Case c : in_each_dtype(dense_case(1, 70, 530, 2, 1, 64, 64))) {
      c.scores = scores;
      c.max_logit = true;
      EXPECT_TRUE(!does(c) || forward_agrees({engine(), c}));
    }
  }
}

TEST_P(MaxLogit, is_minus_infinity_without_rows) {
  for (Case c : in_each_dtype(dense_case(2, 0, 30, 2, 1, 64, 64))) {
    c.max_logit = true;
    if (!does(c)) continue;
    const ForwardRun run = forward(c, make_forward_inputs(c));
    for (int64_t b : {0, 1}) {
      for (int64_t h : {0, 1}) EXPECT_EQ(run.max_logit.get(b, 0, h, 0), -INFINITY) << c;
    }
  }
}

}  // namespace
}  // namespace fa3::test
