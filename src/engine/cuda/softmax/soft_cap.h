// SPDX-License-Identifier: Apache-2.0
// softcap * tanh(x), x = scale * product / softcap, in log2 units; its factors are worked out on
// the host. Near zero an odd polynomial; beyond, 1 - 2 / (e^2x + 1), which would cancel there.
// Plain constexpr: tested on the host. Next: score.cuh.
#pragma once

#include <algorithm>
#include <cfloat>
#include <numbers>

#include "core/macros.h"

namespace fa3::cuda {

struct SoftCap {
  static constexpr int kTerms = 4;

  float to_fraction;          // from a product to x
  float coefficient[kTerms];  // of x, x^3, ...
  float largest_small;        // product up to which the polynomial holds
  float to_exponent;          // from a product to log2(e^2x)
  float cap;

  static SoftCap of(double scale, double softcap) {
    // tanh(x) = x (a + b x^2 + ...) up to 0.4 within 1e-7 of itself: a minimax fit.
    constexpr double kTanh[kTerms] = {0.9999999019040751, -0.33331362468981035, 0.13270976816422209,
                                      -0.04755360330212311};
    constexpr double kSmall = 0.4, kLog2E = std::numbers::log2e;
    // What overflows fp32 belongs to products that are not small, or to none but zero.
    const auto finite = [](double x) { return float(std::clamp<double>(x, -FLT_MAX, FLT_MAX)); };
    const double fraction = scale / softcap;
    SoftCap result;
    result.to_fraction = finite(fraction);
    for (int i = 0; i < kTerms; ++i) {
      result.coefficient[i] = finite(kTanh[i] * softcap * kLog2E);
    }
    result.largest_small = finite(kSmall / fraction);
    result.to_exponent = finite(2 * kLog2E * fraction);
    result.cap = finite(softcap * kLog2E);
    return result;
  }

  FA3_HD constexpr float of_small(float product) const {
    return of_fraction(product * to_fraction);
  }
  FA3_HD constexpr float of_fraction(float x) const {
    const float square = x * x;
    float sum = coefficient[kTerms - 1];
    for (int i = kTerms - 2; i >= 0; --i) sum = sum * square + coefficient[i];
    return x * sum;
  }
};

}  // namespace fa3::cuda
