// SPDX-License-Identifier: Apache-2.0
//
// How far a result may be from the truth (docs/numerics.md has the reasons): what `fa3 verify` and
// the tests go by.
//
//   error <= 2 * error of standard attention in the same dtype + 4 * roundoff    (2-norms)
//   |LSE - truth| <= 1e-4 + (2^-20 + 2 * the roundoff to which scores were rounded, if they were) *
//   S
//
// S is the largest |score|, or a bound of it.
#pragma once

#include <fa3/fa3.h>

#include <algorithm>
#include <cmath>

namespace fa3 {

// Half the distance between numbers next to 1.
constexpr double unit_roundoff(fa3_dtype dtype) {
  return dtype == FA3_FLOAT32 ? 0x1p-24 : dtype == FA3_FLOAT16 ? 0x1p-11 : 0x1p-8;
}

// For a whole call: its dtypes' roundoff, and the relative error of exp(s), which is the error of
// s: a float32 sum of `dim` products, in whatever order, whose roundoffs add up like random steps.
inline double roundoff_of_call(fa3_dtype in, fa3_dtype out, double dim, double largest_score) {
  const double steps = std::max(1.0, std::sqrt(dim) / 2);
  return std::max(unit_roundoff(in), unit_roundoff(out)) + 0x1p-24 * steps * largest_score;
}

// For engines that multiply e4m3: weights are off by up to 2^-4 of themselves, four times this; and
// the tensor cores keep some 13 bits of the largest term of a score, which may be larger than the
// score.
constexpr double kE4m3WeightRoundoff = 0x1p-6, kE4m3ScoreRoundoff = 0x1p-9;

// Relative errors, of a row or of a tensor. Outputs are sums of rounded products: a few roundoffs,
// whatever the baseline's luck was.
constexpr double allowed_error(double baseline_error, double roundoff) {
  return 2 * baseline_error + 4 * roundoff;
}

constexpr double allowed_lse_error(double largest_score, double score_roundoff = 0) {
  return 1e-4 + (0x1p-20 + 2 * score_roundoff) * largest_score;
}

}  // namespace fa3
