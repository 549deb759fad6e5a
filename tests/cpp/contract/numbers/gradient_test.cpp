// SPDX-License-Identifier: Apache-2.0
//
// Gradients against finite differences of the loss sum(dO * O) + sum(dLSE * LSE): first the
// textbook's, which judges everything else, then every engine's own.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "contract/fixture.h"
#include "support/random.h"

namespace fa3::test {
namespace {

class Gradient : public EngineTest {};
FA3_FOR_EVERY_ENGINE(Gradient);

std::vector<Case> gradient_cases() {
  Case plain = dense_case(1, 7, 9, 2, 1, 5, 6);
  Case causal = dense_case(2, 9, 7, 2, 2, 8, 4);  // the first queries see nothing
  causal.causal = true;
  Case window = dense_case(1, 12, 12, 4, 2, 6, 6);
  window.left = 3;
  window.right = 2;
  window.sink = window.d_lse = true;
  Case beside = window;
  beside.shift = -4;
  Case capped = dense_case(1, 6, 11, 3, 1, 4, 9);
  capped.softcap = 2;
  capped.scale = 0.9f;
  capped.sink = capped.d_lse = true;
  Case packed = dense_case(3, 0, 0, 2, 1, 4, 5);
  packed.q = {.owned = {4, 0, 3}, .spare_rows = 1};
  packed.k = {.owned = {3, 2, 6}, .used = {3, 2, 4}};
  packed.causal = packed.sink = packed.d_lse = true;
  Case with_lse = causal;
  with_lse.d_lse = true;
  return {plain, causal, window, beside, capped, packed, with_lse};
}

// The LSE of the first queries of a causal case may be -inf: then its gradient is not read.
Inputs inputs_of(const Case& c) {
  Inputs inputs = make_inputs(c);
  const int64_t blind = c.causal && !c.sink && !c.q.packed() ? c.q.rows - c.k.rows : 0;
  for (int64_t b = 0; c.d_lse && b < c.batch; ++b) {
    for (int64_t row = 0; row < blind; ++row) inputs.d_lse.fill_row(b, row, NAN);
  }
  return inputs;
}

// d loss / d element, by a central difference around it.
double slope(const std::function<double(const Inputs&)>& loss, Inputs* inputs, Tensor* input,
             const std::array<int64_t, 4>& at, float step) {
  const auto [b, row, head, c] = at;
  const float middle = input->get(b, row, head, c);
  const auto loss_at = [&](float value) {
    input->set(b, row, head, c, value);
    return loss(*inputs);
  };
  const double above = loss_at(middle + step), below = loss_at(middle - step);
  input->set(b, row, head, c, middle);
  return (above - below) / (double{middle + step} - double{middle - step});
}

// Compares some elements of one gradient with differences of the loss.
struct Differences {
  const Case& c;
  std::function<double(const Inputs&)> loss;
  float step;
  double tolerance;

  void check(const char* what, Inputs* inputs, Tensor* input, const Values& gradient) const {
    Random random(c.seed);
    const Shape& shape = gradient.shape;
    for (int sample = 0; sample < 40; ++sample) {
      const std::array<int64_t, 4> at = {random.below(shape.batch), random.below(shape.rows),
                                         random.below(shape.heads), random.below(shape.dim)};
      if (std::isnan(input->get(at[0], at[1], at[2], at[3]))) continue;  // an unused row
      const double want = slope(loss, inputs, input, at, step);
      const double got = gradient.row(at[0], at[1], at[2])[at[3]];
      EXPECT_NEAR(got, want, tolerance * (1 + std::abs(want)))
          << what << coordinates(at[0], at[1], at[2], at[3]) << "; " << c;
    }
  }
};

double loss_of(const Case& c, const Inputs& in, const Values& o, const Values& lse) {
  double sum = 0;
  for (int64_t b = 0; b < o.shape.batch; ++b) {
    for (int64_t row = 0; row < o.shape.rows; ++row) {
      if (!is_used_row(c, c.q, b, row)) continue;
      for (int64_t head = 0; head < o.shape.heads; ++head) {
        for (int64_t col = 0; col < o.shape.dim; ++col) {
          sum += double{in.d_o.get(b, row, head, col)} * o.row(b, row, head)[col];
        }
        const double of_row = *lse.row(b, row, head);
        if (c.d_lse && std::isfinite(of_row)) sum += in.d_lse.get(b, row, head, 0) * of_row;
      }
    }
  }
  return sum;
}

TEST(TextbookGradient, is_the_slope_of_the_textbook_forward) {
  for (const Case& c : gradient_cases()) {
    Inputs inputs = inputs_of(c);
    const Textbook book = textbook_backward(c, inputs);
    const Differences differences{c,
                                  [&](const Inputs& in) {
                                    const Textbook at = textbook_forward(c, in);
                                    return loss_of(c, in, at.o, at.lse);
                                  },
                                  0x1p-9f, 2e-5};
    differences.check("dq", &inputs, &inputs.q, book.dq);
    differences.check("dk", &inputs, &inputs.k, book.dk);
    differences.check("dv", &inputs, &inputs.v, book.dv);
    if (c.sink) differences.check("dsink", &inputs, &inputs.sink, book.dsink);
  }
}

TEST_P(Gradient, is_the_slope_of_the_engines_own_forward) {
  for (const Case& c : gradient_cases()) {
    if (!does_backward(c)) continue;
    Inputs inputs = inputs_of(c);
    const BackwardRun run = backward(c, inputs, forward(c, inputs));
    const Differences differences{c,
                                  [&](const Inputs& in) {
                                    const ForwardRun at = forward(c, in);
                                    return loss_of(c, in, at.o.values(), at.lse.values());
                                  },
                                  0x1p-6f, 1e-3};
    differences.check("dq", &inputs, &inputs.q, run.dq.values());
    differences.check("dk", &inputs, &inputs.k, run.dk.values());
    differences.check("dv", &inputs, &inputs.v, run.dv.values());
    if (c.sink) differences.check("dsink", &inputs, &inputs.sink, run.dsink.values());
  }
}

}  // namespace
}  // namespace fa3::test
