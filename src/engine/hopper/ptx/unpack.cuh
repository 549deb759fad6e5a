// SPDX-License-Identifier: Apache-2.0
// Packed numbers: four of 8 bits become two pairs of fp16; arithmetic of such pairs.
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/unpack.cuh"

namespace fa3::hopper::ptx {

using cuda::unpack_pair;

// Four of e4m3, or of e5m2, which are the upper bytes of fp16. Exact; NaN stays NaN. The flag is
// one for a launch, so that a kernel serves both. What e4m3 gives is written in either case:
// registers that predicated instructions alone write would be taken through all of the kernel.
__device__ __forceinline__ void dequantize(uint32_t four, bool is_e5m2, uint32_t& low,
                                           uint32_t& high) {
  asm("{\n.reg .pred e5m2;\n.reg .b16 l, h;\n"
      "setp.ne.u32 e5m2, %3, 0;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\n"
      "cvt.rn.f16x2.e4m3x2 %1, h;\n"
      "@e5m2 prmt.b32 %0, %2, 0, 0x1404;\n"
      "@e5m2 prmt.b32 %1, %2, 0, 0x3424;\n}\n"
      : "=&r"(low), "=&r"(high)
      : "r"(four), "r"(uint32_t(is_e5m2)));
}

// a * b + c of both halves, each rounded once.
__device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

}  // namespace fa3::hopper::ptx
