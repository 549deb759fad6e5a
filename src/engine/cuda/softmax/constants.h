// SPDX-License-Identifier: Apache-2.0
// Softmax in log2 units: constants, and what becomes of a scale. And whether this is the program of
// a score function (score_captures.h).
#pragma once

#include <cfloat>
#include <numbers>

namespace fa3::cuda {

#ifdef FA3_SCORE_FUNCTION
inline constexpr bool kHasScoreFunction = true;
#else
inline constexpr bool kHasScoreFunction = false;
#endif

inline constexpr float kInfinity = __builtin_inff();
inline constexpr float kLog2E = std::numbers::log2e_v<float>;
inline constexpr float kLn2 = std::numbers::ln2_v<float>;

// A softmax scale in log2 units. Those that no float holds count as the largest float: a factor of
// infinity would make NaN of products that are zero.
constexpr float log2_scale(float scale) {
  const double in_log2_units = scale * std::numbers::log2e;
  return in_log2_units < double{FLT_MAX} ? float(in_log2_units) : FLT_MAX;
}

}  // namespace fa3::cuda
