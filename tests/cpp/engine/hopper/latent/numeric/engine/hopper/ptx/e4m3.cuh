// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, with numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "engine/cuda/ptx/instructions.cuh"

namespace fa3::hopper::ptx {

inline float e4m3_number(uint32_t code) {
  const int exponent = int(code >> 3 & 15), mantissa = int(code & 7);
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float size = exponent > 0 ? std::ldexp(float(8 + mantissa), exponent - 10)
                                  : std::ldexp(float(mantissa), -9);
  return code >> 7 & 1 ? -size : size;
}

inline void e4m3_to_f16(uint32_t four, uint32_t& low, uint32_t& high) {
  const auto pair = [&](int at) {
    return cuda::pack_pair<cuda::Element::kFp16>(e4m3_number(four >> at & 0xff),
                                                 e4m3_number(four >> (at + 8) & 0xff));
  };
  low = pair(0);
  high = pair(16);
}

}  // namespace fa3::hopper::ptx
