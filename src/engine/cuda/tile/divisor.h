// SPDX-License-Identifier: Apache-2.0
// Division by a number that is known when a kernel is launched: a product and a shift. A GPU's
// division takes some 30 instructions, and a CTA that looks for its tile makes several of them one
// after the other before it can load anything. Plain constexpr, tested on the host.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace fa3::cuda {

// A number, not negative, that numbers from 0 to 2^31 - 1 are divided by, unless it is 0.
class Divisor {
 public:
  Divisor() = default;
  FA3_HD constexpr Divisor(int value) : value_(value) {
    while ((int64_t{1} << (shift_ - 31)) < value) ++shift_;
    if (value > 0) multiplier_ = uint32_t(((uint64_t{1} << shift_) + uint64_t(value) - 1) / value);
  }

  FA3_HD constexpr operator int() const { return value_; }

  friend FA3_HD constexpr int operator/(int n, const Divisor& by) {
    return int(uint64_t(uint32_t(n)) * by.multiplier_ >> by.shift_);
  }
  friend FA3_HD constexpr int operator%(int n, const Divisor& by) { return n - n / by * by.value_; }

 private:
  // 2^shift / value, rounded up. With 2^(shift - 31) not below value that is at most 2^32 - 1, and
  // what is too much grows to less than 1 / value in a product with 2^31.
  int value_ = 1;
  int shift_ = 31;
  uint32_t multiplier_ = uint32_t{1} << 31;
};

}  // namespace fa3::cuda
