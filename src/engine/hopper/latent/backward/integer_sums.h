// SPDX-License-Identifier: Apache-2.0
// Sums of the cache's gradient in integers of 64 bits: the same bits in whatever order they are
// added. Plain functions, tested on the host.
//
// A row's contributions are multiplied by a power of two and rounded to integers. The power follows
// from bounds that a kernel finds before (bound_sums.cu), so that no sum is more than 2^61. What is
// not finite cannot be added: it raises the sum beyond 3/4 of the largest integer, where it stays
// whatever is added before and after, and the gradient becomes NaN.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/macros.h"

namespace fa3::hopper {

inline constexpr int kSumBits = 61;
inline constexpr int64_t kNotFinite = int64_t{3} << kSumBits;

// What is known of the contributions to a row. |dS| is at most |dO V| + |dO O| + |d_lse|, since P
// is at most 1, and |dO V| is at most the largest of |dO| times the sum of |V|, which the row
// knows.
struct RowBound {
  int64_t additions = 0;  // how often the row is named
  // The largest of any query that names the row: what all heads of one add to a column is at most
  // fixed + of_value * the sum of the row's |V|.
  float fixed = 0, of_value = 0;
};

struct RowScale {
  float factor = 1;   // of contributions: a power of two
  float largest = 0;  // contribution times the factor
};

// What is added is weight_factor, a power of two, times the contribution: its bound is given
// without.
FA3_HD inline RowScale row_scale(const RowBound& of, double values, float weight_factor) {
  constexpr int kFloatBits = 128;  // no finite float is 2^128
  const double bound = double{of.fixed} + double{of.of_value} * values;
  // Twice the bound: for rounding. Not finite where 128 bits are too few for a bound.
  int bits = bound < 1e38 ? (bound > 0 ? ilogb(bound) + 2 : -kFloatBits) : kFloatBits;
  bits += ilogbf(weight_factor);
  if (bits > kFloatBits) bits = kFloatBits;
  const int most = kSumBits - (of.additions > 1 ? ilogb(double(of.additions - 1)) + 1 : 0);
  const int shift = most - bits < 126 ? most - bits : 126;
  return {ldexpf(1.0f, shift), ldexpf(1.0f, most)};
}

// The gradient of a sum.
FA3_HD inline float gradient_of(int64_t sum, const RowScale& scale, float weight_factor) {
  constexpr int64_t kLargest = int64_t{1} << kSumBits;
  if (sum > kLargest || sum < -kLargest) return NAN;
  return float(double(sum) / (double{scale.factor} * double{weight_factor}));
}

}  // namespace fa3::hopper
