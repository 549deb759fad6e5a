// SPDX-License-Identifier: Apache-2.0
// Numbers of 16 bits in tensors of latent calls.
#pragma once

#include <fa3/fa3.h>

#include <cstdint>

#include "core/dtype.h"

namespace fa3::test {

inline constexpr int kValues = 512;  // channels of V

inline uint16_t narrow(double x, fa3_dtype dtype) {
  return dtype == FA3_FLOAT16 ? from_float<Float16>(float(x)).bits
                              : from_float<BFloat16>(float(x)).bits;
}
inline double widen(uint16_t bits, fa3_dtype dtype) {
  return dtype == FA3_FLOAT16 ? to_float(Float16{bits}) : to_float(BFloat16{bits});
}

}  // namespace fa3::test
