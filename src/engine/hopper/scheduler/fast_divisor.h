// SPDX-License-Identifier: Apache-2.0
// Division by a number that the host knows: a product and a shift instead of some twenty
// instructions. Plain numbers, tested on the host.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace fa3::hopper {

// For dividends and divisors below 2^31.
struct Divisor {
  uint32_t multiplier = 0;
  int shift = 0;

  static constexpr Divisor of(uint32_t number) {
    int bits = 0;
    while (uint64_t{1} << bits < number) ++bits;
    return {uint32_t(((uint64_t{1} << (31 + bits)) + number - 1) / number), 31 + bits};
  }
  FA3_HD constexpr unsigned quotient(unsigned n) const {
    return unsigned(uint64_t{n} * multiplier >> shift);
  }
};

}  // namespace fa3::hopper
