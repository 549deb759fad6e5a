// SPDX-License-Identifier: Apache-2.0
//
// Rows that see no key, sequences without rows, tensors without elements.
#include <gtest/gtest.h>

#include "contract/fixture.h"
#include "support/limits.h"

namespace fa3::test {
namespace {

class Empty : public EngineTest {
 protected:
  // The rows of a forward that see no key.
  void expect_empty_row(const Case& c, const Inputs& inputs, const ForwardRun& run, int64_t b,
                        int64_t row, bool used = true) const {
    for (int64_t head = 0; head < c.heads_q; ++head) {
      const float lse = c.sink && used ? inputs.sink.get(0, 0, head, 0) : -kInfinity;
      EXPECT_EQ(run.lse.get(b, row, head, 0), lse) << coordinates(b, row, head, 0) << "; " << c;
      for (int64_t col = 0; col < c.dim_v; ++col) {
        EXPECT_EQ(run.o.get(b, row, head, col), 0) << coordinates(b, row, head, col) << "; " << c;
      }
    }
  }
  void expect_zero(const Case& c, const char* what, const Tensor& gradient) const {
    for (double number : gradient.values().numbers) EXPECT_EQ(number, 0) << what << "; " << c;
  }
};
FA3_FOR_EVERY_ENGINE(Empty);

TEST_P(Empty, rows_above_the_diagonal_give_zero_and_minus_infinity_or_the_sink) {
  for (bool sink : {false, true}) {
    Case shape = dense_case(2, 100, 30, 4, 2, 16, 24);
    shape.causal = true;
    shape.sink = sink;
    for (const Case& c : in_each_dtype(shape)) {
      const Inputs inputs = make_inputs(c);
      const ForwardRun run = forward(c, inputs);
      for (int64_t row = 0; row < 70; ++row) expect_empty_row(c, inputs, run, 1, row);
      EXPECT_TRUE(agrees(c));
    }
  }
}

TEST_P(Empty, no_keys_at_all) {
  for (bool sink : {false, true}) {
    Case shape = dense_case(2, 19, 0, 4, 2, 16, 24);
    shape.sink = sink;
    for (const Case& c : in_each_dtype(shape)) {
      const Inputs inputs = make_inputs(c);
      const Runs run = both(c, inputs);
      for (int64_t row = 0; row < 19; ++row) expect_empty_row(c, inputs, run.forward, 1, row);
      if (!run.backward) continue;
      expect_zero(c, "dq", run.backward->dq);
      expect_zero(c, "dsink", run.backward->dsink);
    }
  }
}

TEST_P(Empty, no_queries_give_zero_gradients_of_keys_and_values) {
  for (const Case& c : in_each_dtype(dense_case(2, 0, 33, 4, 2, 16, 24))) {
    const Runs run = both(c, make_inputs(c));
    if (!run.backward) continue;
    expect_zero(c, "dk", run.backward->dk);
    expect_zero(c, "dv", run.backward->dv);
  }
}

TEST_P(Empty, no_batch_entries) {
  for (bool sink : {false, true}) {
    Case shape = dense_case(0, 5, 7, 4, 2, 16, 24);
    shape.sink = sink;
    for (const Case& c : in_each_dtype(shape)) {
      const Runs run = both(c, make_inputs(c));
      if (run.backward) expect_zero(c, "dsink", run.backward->dsink);
    }
  }
}

// All sequences empty, but the tensors have rows that no sequence owns.
TEST_P(Empty, all_packed_sequences_are_empty) {
  Case shape = dense_case(3, 0, 0, 4, 2, 16, 24);
  shape.q = {.owned = {0, 0, 0}, .spare_rows = 5};
  shape.k = {.owned = {0, 0, 0}, .spare_rows = 6};
  for (const Case& c : in_each_dtype(shape)) {
    const Inputs inputs = make_inputs(c);
    const Runs run = both(c, inputs);
    for (int64_t row = 0; row < 5; ++row) expect_empty_row(c, inputs, run.forward, 0, row);
    if (!run.backward) continue;
    expect_zero(c, "dq", run.backward->dq);
    expect_zero(c, "dk", run.backward->dk);
    expect_zero(c, "dv", run.backward->dv);
  }
}

TEST_P(Empty, rows_past_the_used_length_give_zero_and_minus_infinity_even_with_a_sink) {
  for (bool sink : {false, true}) {
    Case shape = dense_case(2, 40, 50, 2, 2, 16, 16);
    shape.q.used = {0, 33};
    shape.k.used = {50, 21};
    shape.sink = sink;
    for (const Case& c : in_each_dtype(shape)) {
      const Inputs inputs = make_inputs(c);
      const Runs run = both(c, inputs);
      const auto expect_empty = [&](int64_t b, int64_t first) {
        for (int64_t row = first; row < 40; ++row) {
          expect_empty_row(c, inputs, run.forward, b, row, false);
        }
      };
      expect_empty(0, 0);
      expect_empty(1, 33);
      if (!run.backward) continue;
      for (int64_t key = 0; key < 50; ++key) {
        EXPECT_EQ(run.backward->dk.get(0, key, 0, 0), 0) << "entry 0 has no query, key " << key;
      }
      for (int64_t key = 21; key < 50; ++key) {
        EXPECT_EQ(run.backward->dv.get(1, key, 1, 3), 0) << "unused key " << key;
      }
    }
  }
}

// A window that lies beside the sequence: rows in the middle see nothing.
TEST_P(Empty, windows_that_hold_no_key) {
  Case shape = dense_case(1, 60, 20, 2, 1, 8, 8);
  shape.left = 0;
  shape.right = 0;
  for (const Case& c : in_each_dtype(shape)) {
    const Inputs inputs = make_inputs(c);
    const ForwardRun run = forward(c, inputs);
    for (int64_t row = 0; row < 40; ++row) expect_empty_row(c, inputs, run, 0, row);
    EXPECT_TRUE(agrees(c));
  }
}

TEST_P(Empty, a_sink_of_minus_infinity_is_no_sink) {
  Case shape = dense_case(1, 70, 50, 2, 1, 16, 16);
  shape.causal = true;
  shape.sink = true;
  for (const Case& c : in_each_dtype(shape)) {
    Case without = c;
    without.sink = false;
    const Runs want = both(without, make_inputs(without));
    Inputs inputs = make_inputs(c);
    inputs.sink.fill_row(0, 0, -kInfinity);
    const Runs got = both(c, inputs);
    if (got.backward) expect_zero(c, "dsink", got.backward->dsink);
    EXPECT_TRUE(bits_equal("o", got.forward.o, want.forward.o));
    EXPECT_TRUE(bits_equal("lse", got.forward.lse, want.forward.lse));
    if (got.backward) {
      EXPECT_TRUE(bits_equal("dk", got.backward->dk, want.backward->dk));
    }
  }
}

TEST_P(Empty, a_thousand_sequences_most_of_them_empty) {
  Case c = dense_case(1000, 0, 0, 2, 1, 8, 8);
  for (int b = 0; b < 1000; ++b) {
    c.q.owned.push_back(b % 7 == 0 ? 3 : 0);
    c.k.owned.push_back(b % 5 == 0 ? 4 : 0);
  }
  for (const Case& each : in_each_dtype(c)) EXPECT_TRUE(agrees(each));
}

}  // namespace
}  // namespace fa3::test
