// SPDX-License-Identifier: Apache-2.0
//
// Memory outside the sequences never changes a result, whatever it holds; NaN and Inf in what is
// visible do reach the result, and nothing but the rows that see them.
#include <gtest/gtest.h>

#include <cmath>

#include "cli/call/error_rule.h"
#include "contract/fixture.h"
#include "support/limits.h"
#include "support/runs/sample.h"

namespace fa3::test {
namespace {

class InvisibleMemory : public EngineTest {
 protected:
  // Packed and padded cases of every kind; `make_inputs` has already filled the rest with NaN.
  std::vector<Case> cases_with_padding() {
    constexpr Layout kGaps[] = {Layout::padded, Layout::qkv, Layout::spaced};
    std::vector<Case> cases;
    for (uint64_t seed = 1; std::ssize(cases) < by_effort(4, 16, 100) && seed < 1000; ++seed) {
      Case c = random_case(engine(), seed);
      c.in = kGaps[seed % 3];
      if (does(c)) cases.push_back(c);
    }
    return cases;
  }
};
class NotFinite : public EngineTest {
 protected:
  // Two batch entries, two key heads, three query heads each; with and without a band of visible
  // keys.
  std::vector<Case> bands() {
    Case causal = dense_case(2, 70, 90, 6, 2, 24, 40);
    causal.causal = true;
    causal.out = Layout::spaced;
    Case band = causal;
    band.left = 30;
    std::vector<Case> cases = in_each_dtype(causal);
    for (const Case& c : in_each_dtype(band)) cases.push_back(c);
    return cases;
  }

  // What a neighbour that is not finite may change in a row of about 1: nothing, where rows are
  // apart.
  double slack(const Case& c) const { return engine().rows_apart ? 0 : 8 * unit_roundoff(c.dtype); }

  // Elements chosen by `reached` must not be finite; all others must be those of `clean`.
  template <class Reached>
  void expect_reaches(const Case& c, const Tensor& got, const Tensor& clean,
                      Reached&& reached) const {
    const Shape& shape = got.shape();
    for (int64_t b = 0; b < shape.batch; ++b) {
      for (int64_t row = 0; row < shape.rows; ++row) {
        for (int64_t head = 0; head < shape.heads; ++head) {
          for (int64_t col = 0; col < shape.dim; ++col) {
            const float value = got.get(b, row, head, col);
            const float before = clean.get(b, row, head, col);
            const bool right = reached(b, row, head, col)
                                   ? !std::isfinite(value)
                                   : value == before || std::abs(value - before) <= slack(c);
            ASSERT_TRUE(right) << coordinates(b, row, head, col) << ": got " << value << ", clean "
                               << before << "; " << c;
          }
        }
      }
    }
  }
};
FA3_FOR_EVERY_ENGINE(InvisibleMemory);
FA3_FOR_EVERY_ENGINE(NotFinite);

TEST_P(InvisibleMemory, does_not_change_the_forward) {
  for (const Case& c : cases_with_padding()) {
    Inputs inputs = make_inputs(c);
    const ForwardRun want = forward(c, inputs);
    for (float value : {0.0f, kInfinity, 3e38f}) {
      fill_invisible(c, value, &inputs);
      const ForwardRun got = forward(c, inputs);
      ASSERT_TRUE(bits_equal("o", got.o, want.o)) << c << " filled with " << value;
      ASSERT_TRUE(bits_equal("lse", got.lse, want.lse)) << c << " filled with " << value;
    }
  }
}

TEST_P(InvisibleMemory, does_not_change_the_backward) {
  for (const Case& c : cases_with_padding()) {
    if (!does_backward(c)) continue;
    Inputs inputs = make_inputs(c);
    const ForwardRun at = forward(c, inputs);
    const BackwardRun want = backward(c, inputs, at);
    fill_invisible(c, 0.0f, &inputs);
    const BackwardRun got = backward(c, inputs, at);
    ASSERT_TRUE(bits_equal("dq", got.dq, want.dq)) << c;
    ASSERT_TRUE(bits_equal("dk", got.dk, want.dk)) << c;
    ASSERT_TRUE(bits_equal("dv", got.dv, want.dv)) << c;
    ASSERT_TRUE(bits_equal("dsink", got.dsink, want.dsink)) << c;
  }
}

TEST_P(NotFinite, nan_in_a_query_reaches_its_row_and_no_other) {
  for (const Case& c : bands()) {
    Inputs inputs = make_inputs(c);
    const ForwardRun clean = forward(c, inputs);
    inputs.q.set(1, 33, 4, 7, kNaN);
    const ForwardRun run = forward(c, inputs);
    const auto reached = [](int64_t b, int64_t row, int64_t head, int64_t) {
      return b == 1 && row == 33 && head == 4;
    };
    expect_reaches(c, run.o, clean.o, reached);
    expect_reaches(c, run.lse, clean.lse, reached);
  }
}

// However far its scores outgrow those of the rows beside it, which share its vectors and tiles.
TEST_P(NotFinite, a_row_depends_on_no_other_row) {
  for (const Case& c : in_each_dtype(dense_case(1, 20, 1500, 2, 1, 32, 32))) {
    Inputs inputs = make_inputs(c);
    const ForwardRun clean = forward(c, inputs);
    for (float value : {1000.0f, kInfinity, kNaN}) {
      inputs.q.fill_row(0, 9, value);
      ForwardRun run = forward(c, inputs);
      for (int64_t head = 0; head < c.heads_q; ++head) {
        run.lse.set(0, 9, head, 0, clean.lse.get(0, 9, head, 0));
        for (int64_t col = 0; col < c.dim_v; ++col) {
          run.o.set(0, 9, head, col, clean.o.get(0, 9, head, col));
        }
      }
      const auto nowhere = [](auto...) { return false; };
      expect_reaches(c, run.o, clean.o, nowhere);
      expect_reaches(c, run.lse, clean.lse, nowhere);
    }
  }
}

TEST_P(NotFinite, nan_in_a_key_reaches_exactly_the_rows_that_see_it) {
  for (const Case& c : bands()) {
    Inputs inputs = make_inputs(c);
    const ForwardRun clean = forward(c, inputs);
    constexpr int64_t kKey = 50;
    inputs.k.set(0, kKey, 1, 3, kNaN);
    const ForwardRun run = forward(c, inputs);
    const auto reached = [&](int64_t b, int64_t row, int64_t head, int64_t) {
      return b == 0 && head / c.group() == 1 && visible(c, row, kKey, c.q.rows, c.k.rows);
    };
    expect_reaches(c, run.o, clean.o, reached);
    expect_reaches(c, run.lse, clean.lse, reached);
  }
}

// Hidden keys of the same tile may be touched too (weight 0 times NaN is NaN), so only those rows
// are looked at that see the key, and those of other heads and batch entries.
TEST_P(NotFinite, nan_and_infinity_in_a_value_reach_the_rows_that_see_it_and_no_other_head) {
  for (const Case& c : bands()) {
    for (float value : {kNaN, kInfinity, -kInfinity}) {
      Inputs inputs = make_inputs(c);
      const ForwardRun clean = forward(c, inputs);
      constexpr int64_t kKey = 50, kCol = 9;
      inputs.v.set(1, kKey, 0, kCol, value);
      ForwardRun run = forward(c, inputs);
      for (int64_t row = 0; row < c.q.rows; ++row) {
        for (int64_t head = 0; head < c.group(); ++head) {
          if (visible(c, row, kKey, c.q.rows, c.k.rows)) continue;
          run.o.set(1, row, head, kCol, clean.o.get(1, row, head, kCol));
        }
      }
      expect_reaches(c, run.o, clean.o, [&](int64_t b, int64_t row, int64_t head, int64_t col) {
        return b == 1 && head / c.group() == 0 && col == kCol &&
               visible(c, row, kKey, c.q.rows, c.k.rows);
      });
      expect_reaches(c, run.lse, clean.lse, [](auto...) { return false; });
    }
  }
}

// A score of +inf makes inf - inf; a score of -inf is a key with weight 0.
TEST_P(NotFinite, infinite_scores_behave_as_in_the_textbook) {
  for (const Case& c : bands()) {
    Inputs inputs = make_inputs(c);
    const ForwardRun clean = forward(c, inputs);
    constexpr int64_t kKey = 40;
    inputs.k.set(0, kKey, 0, 3, kInfinity);
    const ForwardRun run = forward(c, inputs);
    for (int64_t row = 0; row < c.q.rows; ++row) {
      const float lse = run.lse.get(0, row, 1, 0);
      if (!visible(c, row, kKey, c.q.rows, c.k.rows)) {
        EXPECT_NEAR(lse, clean.lse.get(0, row, 1, 0), slack(c))
            << "row " << row << " does not see it; " << c;
      } else if (inputs.q.get(0, row, 1, 3) > 0) {
        EXPECT_FALSE(std::isfinite(lse)) << "row " << row << " has a score of +inf; " << c;
      } else {
        EXPECT_LT(lse, clean.lse.get(0, row, 1, 0)) << "row " << row << " loses a key; " << c;
      }
    }
  }
}

TEST_P(NotFinite, a_row_whose_scores_are_all_minus_infinity_is_empty) {
  for (const Case& c : in_each_dtype(dense_case(1, 5, 40, 1, 1, 8, 16))) {
    Inputs inputs = make_inputs(c);
    for (int64_t key = 0; key < c.k.rows; ++key) inputs.k.set(0, key, 0, 0, kInfinity);
    for (int64_t row = 0; row < c.q.rows; ++row) inputs.q.set(0, row, 0, 0, -1.0f);
    const ForwardRun run = forward(c, inputs);
    for (int64_t row = 0; row < c.q.rows; ++row) {
      EXPECT_EQ(run.lse.get(0, row, 0, 0), -kInfinity) << "row " << row << "; " << c;
      for (int64_t col = 0; col < c.dim_v; ++col) EXPECT_EQ(run.o.get(0, row, 0, col), 0) << row;
    }
  }
}

TEST_P(NotFinite, nan_in_an_output_gradient_stays_in_its_batch_entry_and_key_head) {
  for (const Case& c : bands()) {
    if (!does_backward(c)) continue;
    Inputs inputs = make_inputs(c);
    const ForwardRun at = forward(c, inputs);
    const BackwardRun clean = backward(c, inputs, at);
    inputs.d_o.set(1, 33, 4, 7, kNaN);
    const BackwardRun run = backward(c, inputs, at);
    expect_reaches(c, run.dq, clean.dq, [](int64_t b, int64_t row, int64_t head, int64_t) {
      return b == 1 && row == 33 && head == 4;
    });
    const auto sees = [&](int64_t b, int64_t key, int64_t head, int64_t) {
      return b == 1 && head == 1 && visible(c, 33, key, c.q.rows, c.k.rows);
    };
    Tensor dk = run.dk;  // keys that row 33 does not see may be reached within the tile
    for (int64_t key = 0; key < c.k.rows; ++key) {
      for (int64_t col = 0; col < c.dim; ++col) {
        if (!sees(1, key, 1, 0)) dk.set(1, key, 1, col, clean.dk.get(1, key, 1, col));
      }
    }
    expect_reaches(c, dk, clean.dk, sees);
  }
}

}  // namespace
}  // namespace fa3::test
