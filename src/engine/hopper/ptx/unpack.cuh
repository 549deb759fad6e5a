// SPDX-License-Identifier: Apache-2.0
// Packed elements as wider ones: two of 16 bits as floats, the way back from pack_pair; four of
// e4m3 as pairs of 16 bits.
#pragma once

#include <cstdint>

#include "engine/cuda/element.h"

namespace fa3::hopper::ptx {

using cuda::Element;

template <Element E>
__device__ __forceinline__ void unpack_pair(uint32_t pair, float& low, float& high) {
  if constexpr (E == Element::kBf16) {  // the upper half of a float
    low = __uint_as_float(pair << 16);
    high = __uint_as_float(pair & 0xffff0000u);
  } else {
    asm("{\n.reg .f16 l, h;\n"
        "mov.b32 {l, h}, %2;\n"
        "cvt.f32.f16 %0, l;\n"
        "cvt.f32.f16 %1, h;\n}\n"
        : "=f"(low), "=f"(high)
        : "r"(pair));
  }
}

// To fp16: exact; NaN stays NaN.
__device__ __forceinline__ void dequantize_e4m3(uint32_t four, uint32_t& low, uint32_t& high) {
  asm("{\n.reg .b16 l, h;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\n"
      "cvt.rn.f16x2.e4m3x2 %1, h;\n}\n"
      : "=r"(low), "=r"(high)
      : "r"(four));
}

}  // namespace fa3::hopper::ptx
