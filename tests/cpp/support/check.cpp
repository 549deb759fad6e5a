// SPDX-License-Identifier: Apache-2.0
//
// A whole case on one engine: runs it, the textbook and the baseline, and compares every output.
#include "support/compare.h"

namespace fa3::test {
namespace {

// Outputs are sums of rounded products: a few roundoffs, whatever the baseline's luck was.
constexpr double kUnits = 4;
// Rows of O have no cancellation beyond their own size; gradients do (dP - D), so that a row of dQ
// or dK is judged by the mean row if that is larger.
constexpr double kLeastOutputRow = 0.1;
constexpr double kLeastGradientRow = 1;

double roundoff_of(const EngineUnderTest& engine, const Case& c, fa3_dtype output) {
  const double output_unit = unit_roundoff(output);
  return engine.exact ? output_unit : std::max(output_unit, unit_roundoff(c.dtype));
}

testing::AssertionResult failed(const Checked& checked, const std::string& why) {
  return testing::AssertionFailure() << checked.engine.name << ", " << checked.c << ": " << why;
}

struct Compared {
  const char* what;
  const Tensor* got;
  const Values* want;
  const Tensor* baseline;
  double least_row;
};

testing::AssertionResult compare(const Checked& checked, const std::vector<Compared>& outputs) {
  for (const Compared& output : outputs) {
    const double unit = roundoff_of(checked.engine, checked.c, output.got->dtype());
    const Values base = output.baseline->values();
    const Tolerance tolerance{.unit = unit, .units = kUnits, .least_row = output.least_row};
    const testing::AssertionResult result =
        agrees(output.what, output.got->values(), *output.want,
               checked.engine.exact ? nullptr : &base, tolerance);
    if (!result) return failed(checked, result.message());
  }
  return testing::AssertionSuccess();
}

testing::AssertionResult compare_forward(const Checked& checked, const Textbook& book,
                                         const ForwardRun& run, const ForwardRun& base) {
  if (!run.problem.empty()) return failed(checked, run.problem);
  const double score_unit = checked.engine.rounds_scores ? unit_roundoff(checked.c.dtype) : 0;
  const auto lse = lse_agrees(run.lse.values(), book, score_unit);
  if (!lse) return failed(checked, lse.message());
  return compare(checked, {{"o", &run.o, &book.o, &base.o, kLeastOutputRow}});
}

}  // namespace

testing::AssertionResult forward_agrees(const Checked& checked) {
  return forward_agrees(checked, make_inputs(checked.c));
}

testing::AssertionResult backward_agrees(const Checked& checked) {
  return backward_agrees(checked, make_inputs(checked.c));
}

testing::AssertionResult forward_agrees(const Checked& checked, const Inputs& inputs) {
  const auto& [engine, c] = checked;
  const Textbook book = textbook_forward(c, inputs);
  return compare_forward(checked, book, run_forward(engine, c, inputs),
                         run_forward(baseline(), c, inputs));
}

testing::AssertionResult backward_agrees(const Checked& checked, const Inputs& inputs) {
  const auto& [engine, c] = checked;
  const Textbook book = textbook_backward(c, inputs);
  const ForwardRun forward = run_forward(engine, c, inputs);
  const ForwardRun base_forward = run_forward(baseline(), c, inputs);
  if (auto result = compare_forward(checked, book, forward, base_forward); !result) return result;
  const BackwardRun run = run_backward(engine, c, inputs, forward);
  if (!run.problem.empty()) return failed(checked, run.problem);
  const BackwardRun base = run_backward(baseline(), c, inputs, base_forward);
  std::vector<Compared> outputs = {{"dq", &run.dq, &book.dq, &base.dq, kLeastGradientRow},
                                   {"dk", &run.dk, &book.dk, &base.dk, kLeastGradientRow},
                                   {"dv", &run.dv, &book.dv, &base.dv, kLeastGradientRow}};
  if (c.sink) outputs.push_back({"dsink", &run.dsink, &book.dsink, &base.dsink, 1});
  return compare(checked, outputs);
}

}  // namespace fa3::test
