// SPDX-License-Identifier: Apache-2.0
//
// A whole case on one engine: runs it, the textbook and the baseline, and compares every output.
#include <algorithm>
#include <cmath>

#include "cli/call/error_rule.h"
#include "support/cases/fp8.h"
#include "support/oracle/compare.h"

namespace fa3::test {
namespace {

bool multiplies_e4m3(const Checked& checked) {
  return checked.engine.multiplies_e4m3 && checked.c.dtype == FA3_FLOAT8_E4M3;
}

double roundoff_of(const Checked& checked, const Textbook& book, fa3_dtype output) {
  if (checked.engine.exact) return unit_roundoff(output);
  const double of_e4m3 = kE4m3WeightRoundoff + kE4m3ScoreRoundoff * book.largest_score;
  // Weights are rounded to the queries' type, whatever keys, values and output are.
  const fa3_dtype in = checked.c.dtype == FA3_FLOAT8_E4M3 ? FA3_FLOAT32 : checked.c.dtype;
  return roundoff_of_call(in, output, static_cast<double>(checked.c.dim), book.largest_score) +
         (multiplies_e4m3(checked) ? of_e4m3 : 0);
}

double score_roundoff_of(const Checked& checked) {
  if (multiplies_e4m3(checked)) return kE4m3ScoreRoundoff;
  return checked.engine.rounds_scores ? unit_roundoff(checked.c.dtype) : 0;
}

testing::AssertionResult failed(const Checked& checked, const std::string& why) {
  return testing::AssertionFailure() << checked.engine.name << ", " << checked.c << ": " << why;
}

struct Compared {
  const char* what;
  const Tensor* got;
  const Values* want;
  const Tensor* baseline;
  const Values* terms;
  double factor = 0;  // largest number that a weight, or its gradient, is multiplied by
  int64_t products = 0;
};

double largest(const Tensor& t) {
  double most = 0;
  for (const double x : t.values().numbers)
    most = std::max(most, std::isfinite(x) ? std::abs(x) : 0);
  return most;
}

// What half precision takes from small numbers: from those of the output itself, and from small
// weights and their gradients, which enter products in it; their losses add up like random steps.
double underflow_of(const Compared& output) {
  const double smallest = underflow(output.got->dtype());
  return smallest * (1 + output.factor / 2 * std::sqrt(static_cast<double>(output.products)));
}

testing::AssertionResult compare(const Checked& checked, const Textbook& book,
                                 const std::vector<Compared>& outputs) {
  for (const Compared& output : outputs) {
    const Values base = output.baseline->values();
    const Tolerance tolerance{.roundoff = roundoff_of(checked, book, output.got->dtype()),
                              .underflow = underflow_of(output),
                              .terms = output.terms};
    const testing::AssertionResult result =
        agrees(output.what, output.got->values(), *output.want,
               checked.engine.exact ? nullptr : &base, tolerance);
    if (!result) return failed(checked, result.message());
  }
  return testing::AssertionSuccess();
}

// The baseline's answer, as fast as the machine gives it: threads change no bit.
Case of_baseline(Case c) {
  c.num_threads = 0;
  return c;
}

}  // namespace

testing::AssertionResult forward_agrees(const Checked& checked) {
  return forward_agrees(checked, make_forward_inputs(checked.c));
}

testing::AssertionResult backward_agrees(const Checked& checked) {
  return backward_agrees(checked, make_inputs(checked.c));
}

testing::AssertionResult forward_agrees(const Checked& checked, const Inputs& inputs) {
  const auto& [engine, c] = checked;
  const Case plain = dequantized(c);
  const Inputs plain_inputs = dequantized(c, inputs);
  const Textbook book = textbook_forward(plain, plain_inputs);
  return forward_agrees(checked, book, run_forward(engine, c, inputs),
                        run_forward(baseline(), of_baseline(plain), plain_inputs));
}

testing::AssertionResult backward_agrees(const Checked& checked, const Inputs& inputs) {
  const auto& [engine, c] = checked;
  const Textbook book = textbook_backward(c, inputs);
  const ForwardRun forward = run_forward(engine, c, inputs);
  const ForwardRun base_forward = run_forward(baseline(), of_baseline(c), inputs);
  if (auto result = forward_agrees(checked, book, forward, base_forward); !result) return result;
  const BackwardRun run = run_backward(engine, c, inputs, forward);
  if (!run.problem.empty()) return failed(checked, run.problem);
  const BackwardRun base = run_backward(baseline(), of_baseline(c), inputs, base_forward);
  const double scale = std::abs(c.effective_scale());
  const int64_t keys = c.k.longest(), rows = c.q.longest() * c.group();
  std::vector<Compared> gradients = {
      {"dq", &run.dq, &book.dq, &base.dq, &book.dq_terms, scale * largest(inputs.k), keys},
      {"dk", &run.dk, &book.dk, &base.dk, &book.dk_terms, scale * largest(inputs.q), rows},
      {"dv", &run.dv, &book.dv, &base.dv, &book.dv_terms, largest(inputs.d_o), rows},
      {"dsink", &run.dsink, &book.dsink, &base.dsink, &book.dsink_terms}};
  if (c.gate != Gate::none) {
    gradients.push_back({"d_gate", &run.d_gate, &book.d_gate, &base.d_gate, &book.d_gate_terms});
  }
  return compare(checked, book, gradients);
}

testing::AssertionResult forward_agrees(const Checked& checked, const Textbook& book,
                                        const ForwardRun& run, const ForwardRun& base) {
  if (!run.problem.empty()) return failed(checked, run.problem);
  const auto lse = lse_agrees(run.lse.values(), book, score_roundoff_of(checked));
  if (!lse) return failed(checked, lse.message());
  if (checked.c.max_logit) {
    const auto largest = max_logit_agrees(run.max_logit.values(), book, score_roundoff_of(checked));
    if (!largest) return failed(checked, largest.message());
  }
  return compare(checked, book, {{"o", &run.o, &book.o, &base.o, &book.o_terms}});
}

}  // namespace fa3::test
