// SPDX-License-Identifier: Apache-2.0
//
// A whole case on one engine: runs it, the textbook and the baseline, and compares every output.
#include <algorithm>
#include <cmath>

#include "support/compare.h"

namespace fa3::test {
namespace {

// Outputs are sums of rounded products: a few roundoffs, whatever the baseline's luck was.
constexpr double kUnits = 4;
// The dtype's roundoff, and the relative error of exp(s), which is the error of s: a float32 sum of
// `dim` products, in whatever order. The roundoffs of its partial sums add up like random steps.
double roundoff_of(const Checked& checked, const Textbook& book, fa3_dtype output) {
  const double output_unit = unit_roundoff(output);
  if (checked.engine.exact) return output_unit;
  const double steps = std::max(1.0, std::sqrt(static_cast<double>(checked.c.dim)) / 2);
  return std::max(output_unit, unit_roundoff(checked.c.dtype)) +
         0x1p-24 * steps * book.largest_score;
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
};

testing::AssertionResult compare(const Checked& checked, const Textbook& book,
                                 const std::vector<Compared>& outputs) {
  for (const Compared& output : outputs) {
    const double unit = roundoff_of(checked, book, output.got->dtype());
    const Values base = output.baseline->values();
    const Tolerance tolerance{.unit = unit,
                              .units = kUnits,
                              .underflow = underflow(output.got->dtype()),
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
  return compare(checked, book, {{"o", &run.o, &book.o, &base.o, &book.o_terms}});
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
                 {{"dq", &run.dq, &book.dq, &base.dq, &book.dq_terms},
                  {"dk", &run.dk, &book.dk, &base.dk, &book.dk_terms},
                  {"dv", &run.dv, &book.dv, &base.dv, &book.dv_terms},
                  {"dsink", &run.dsink, &book.dsink, &base.dsink, &book.dsink_terms}});
}

}  // namespace fa3::test
