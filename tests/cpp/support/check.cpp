// SPDX-License-Identifier: Apache-2.0
//
// A whole case on one engine: runs it, the textbook and the baseline, and compares every output.
#include "support/compare.h"

namespace fa3::test {
namespace {

// Outputs are sums of rounded products: a few roundoffs, whatever the baseline's luck was.
constexpr double kUnits = 4;
// A row of O may be small by chance; rows of gradients are judged with their cancelled terms.
constexpr double kLeastOutputRow = 0.1;

// The dtype's roundoff, and the relative error of exp(s) for a float32 s.
double roundoff_of(const Checked& checked, const Textbook& book, fa3_dtype output) {
  const double output_unit = unit_roundoff(output);
  if (checked.engine.exact) return output_unit;
  return std::max(output_unit, unit_roundoff(checked.c.dtype)) + 0x1p-24 * book.largest_score;
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
  const Values* terms;
};

testing::AssertionResult compare(const Checked& checked, const Textbook& book,
                                 const std::vector<Compared>& outputs) {
  for (const Compared& output : outputs) {
    const double unit = roundoff_of(checked, book, output.got->dtype());
    const Values base = output.baseline->values();
    const Tolerance tolerance{.unit = unit,
                              .units = kUnits,
                              .underflow = underflow(output.got->dtype()),
                              .least_row = output.least_row,
                              .terms = output.terms};
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
  return compare(checked, book, {{"o", &run.o, &book.o, &base.o, kLeastOutputRow, nullptr}});
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
  return compare(checked, book,
                 {{"dq", &run.dq, &book.dq, &base.dq, 0, &book.dq_terms},
                  {"dk", &run.dk, &book.dk, &base.dk, 0, &book.dk_terms},
                  {"dv", &run.dv, &book.dv, &base.dv, 0, &book.dv_terms},
                  {"dsink", &run.dsink, &book.dsink, &base.dsink, 0, &book.dsink_terms}});
}

}  // namespace fa3::test
