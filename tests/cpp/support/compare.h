// SPDX-License-Identifier: Apache-2.0
//
// When is a result right? FlashAttention-3's rule, made sharper.
//
// The error against float64 may be at most twice that of standard attention in the same dtype, plus
// a few units of roundoff: the dtype's, and what the size of the scores makes of float32's.
// FlashAttention-3 compares the largest absolute errors; here errors are 2-norms, of the whole
// tensor and of every row relative to that row, so that a bad row cannot hide under a large one.
#pragma once

#include <gtest/gtest.h>

#include "support/case.h"
#include "support/engines.h"
#include "support/run.h"
#include "support/tensor.h"
#include "support/textbook.h"

namespace fa3::test {

struct Tolerance {
  double unit;                    // relative roundoff of the computation
  double units;                   // how many are allowed on top of twice the baseline's error
  double underflow = 0;           // of every number
  const Values* terms = nullptr;  // per row: its size without cancellation, if that is larger
};

// What underflow may take from every number of the dtype: half precision has no smaller numbers;
// the others reach as far down as exp() of a float32 does, times the other factors of a gradient.
double underflow(fa3_dtype dtype);

// Of a dtype: 2^-24, 2^-11, 2^-8.
double unit_roundoff(fa3_dtype dtype);

// `baseline` may be null: then only the roundoff counts.
testing::AssertionResult agrees(const char* what, const Values& got, const Values& want,
                                const Values* baseline, const Tolerance& tolerance);

// LSE: |got - want| within 1e-4 + 2^-21 * largest score (with scores rounded to `dtype`: twice
// their roundoff), -inf exactly where it should be.
testing::AssertionResult lse_agrees(const Values& got, const Textbook& want, double score_unit);

// Forward and backward of one case on one engine, held to the textbook.
struct Checked {
  const EngineUnderTest& engine;
  const Case& c;
};
testing::AssertionResult forward_agrees(const Checked& checked);
testing::AssertionResult backward_agrees(const Checked& checked);
testing::AssertionResult forward_agrees(const Checked& checked, const Inputs& inputs);
testing::AssertionResult backward_agrees(const Checked& checked, const Inputs& inputs);

// Every element's bits equal. Prints the first difference.
testing::AssertionResult bits_equal(const char* what, const Tensor& got, const Tensor& want);

}  // namespace fa3::test
