// SPDX-License-Identifier: Apache-2.0
// Whether rows are peaked: a few keys have most of the probability. Decided once the reference has
// been taken from a row's first keys, by what a thread has at hand: the sum of P over its quarter
// of these keys. Plain constexpr, tested on the host. Used by
// hopper/forward/consumer/promoted_loop.cuh.
#pragma once

#include "core/macros.h"

namespace fa3::cuda {

// A smaller sum is that of a peaked row: its average P is less than kPeakedShare of the largest
// one, `top`. For normal scores that average is 1/8 over 128 keys and 1/10 over 256; for scores
// twice as large 1/26 and 1/39, three times 1/55 over 128, four times 1/106.
inline constexpr float kPeakedShare = 1.0f / 16;

FA3_HD constexpr float peaked_below(int keys, float top) {
  return float(keys) / 4 * (top * kPeakedShare);
}

// Rows are taken for peaked if this many sums are low, out of the `sums` of all rows that decide
// together.
FA3_HD constexpr unsigned enough_low_sums(unsigned sums) {
  return sums / 2;
}

}  // namespace fa3::cuda
