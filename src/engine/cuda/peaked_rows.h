// SPDX-License-Identifier: Apache-2.0
// Whether rows are peaked: a few keys have most of the weight. Asked once the reference has been
// taken from a row's first keys, by what a thread has at hand: the sum of the weights of its
// quarter of these. Plain constexpr, tested on the host. Who asks: hopper/followed_rows.cuh.
#pragma once

#include "core/macros.h"

namespace fa3::cuda {

// Below this such a sum is that of a peaked row: its average weight is less than a sixteenth of the
// largest one, `top`. Of normal scores that average is 1/8 over 128 keys and 1/10 over 256; of
// twice these 1/26 and 1/39.
FA3_HD constexpr float peaked_below(int keys, float top) {
  return float(keys) / 4 * (top / 16);
}

// So many low sums, of all rows that answer together, are enough.
FA3_HD constexpr unsigned enough_low_sums(unsigned sums) {
  return sums / 2;
}

}  // namespace fa3::cuda
