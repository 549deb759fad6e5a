// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace fa3::hopper::ptx {

// Four of e4m3 as pairs of fp16, in the order of their bytes. Exact; NaN stays NaN.
__device__ __forceinline__ void e4m3_to_f16(uint32_t four, uint32_t& low, uint32_t& high) {
  asm("{\n.reg .b16 l, h;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\n"
      "cvt.rn.f16x2.e4m3x2 %1, h;\n}\n"
      : "=r"(low), "=r"(high)
      : "r"(four));
}

}  // namespace fa3::hopper::ptx
