// SPDX-License-Identifier: Apache-2.0
//
// 16-bit elements as floats and back, rounded to nearest even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "engine/cuda/ptx/element.h"

namespace fa3::emulator {

template <cuda::Element E>
float from_bits(uint16_t bits) {
  if constexpr (E == cuda::Element::kBf16) {
    return std::bit_cast<float>(uint32_t(bits) << 16);
  } else {
    return float(std::bit_cast<_Float16>(bits));
  }
}

template <cuda::Element E>
uint16_t to_bits(float x) {
  if constexpr (E == cuda::Element::kBf16) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    if (std::isnan(x)) return 0x7fff;
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  } else {
    return std::bit_cast<uint16_t>(static_cast<_Float16>(x));
  }
}

}  // namespace fa3::emulator
