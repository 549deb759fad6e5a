// SPDX-License-Identifier: Apache-2.0
//
// When is a result right? src/cli/call/error_rule.h says how large an error may be; here is what it
// is measured by: 2-norms, of the whole tensor and of every row relative to that row's size, so
// that a bad row cannot hide under a large one. Numbers that are not finite must be where the truth
// has them.
#pragma once

#include <gtest/gtest.h>

#include "support/cases/case.h"
#include "support/cases/tensor.h"
#include "support/engines.h"
#include "support/oracle/textbook.h"
#include "support/runs/run.h"

namespace fa3::test {

struct Tolerance {
  double roundoff;                // of the call
  double underflow = 0;           // of every number
  const Values* terms = nullptr;  // per row: its size without cancellation, if that is larger
};

// What underflow may take from every number of the dtype: half precision has no smaller numbers;
// the others reach as far down as exp() of a float32 does, times the other factors of a gradient.
double underflow(fa3_dtype dtype);

// `baseline` may be null: then only the roundoff counts.
testing::AssertionResult agrees(const char* what, const Values& got, const Values& want,
                                const Values* baseline, const Tolerance& tolerance);

// `score_roundoff`: to which scores were rounded, if they were.
testing::AssertionResult lse_agrees(const Values& got, const Textbook& want,
                                    double score_roundoff = 0);

// NaN where the truth is NaN, and there alone.
testing::AssertionResult max_logit_agrees(const Values& got, const Textbook& want,
                                          double score_roundoff = 0);

// Forward and backward of one case on one engine, held to the textbook.
struct Checked {
  const EngineUnderTest& engine;
  const Case& c;
};
testing::AssertionResult forward_agrees(const Checked& checked);
testing::AssertionResult backward_agrees(const Checked& checked);
testing::AssertionResult forward_agrees(const Checked& checked, const Inputs& inputs);
// A forward that somebody ran already; `base` is the baseline's.
testing::AssertionResult forward_agrees(const Checked& checked, const Textbook& book,
                                        const ForwardRun& run, const ForwardRun& base);
testing::AssertionResult backward_agrees(const Checked& checked, const Inputs& inputs);

// Every element's bits equal. Prints the first difference.
testing::AssertionResult bits_equal(const char* what, const Tensor& got, const Tensor& want);

}  // namespace fa3::test
