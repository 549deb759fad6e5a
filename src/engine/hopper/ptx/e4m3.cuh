// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/unpack.cuh"

namespace fa3::hopper::ptx {

// Four of e4m3 as pairs of bf16. Exact; NaN stays NaN. By fp16 and fp32: conversions and additions
// of halves run beside the logical unit, which the moving of bits would keep busy.
__device__ __forceinline__ void e4m3_to_bf16(uint32_t four, uint32_t& low, uint32_t& high) {
  uint32_t halves[2];
  asm("{\n.reg .b16 l, h;\n"
      "mov.b32 {l, h}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, l;\n"
      "cvt.rn.f16x2.e4m3x2 %1, h;\n}\n"
      : "=r"(halves[0]), "=r"(halves[1])
      : "r"(four));
  float x, y;
  cuda::unpack_pair<Element::kFp16>(halves[0], x, y);
  low = cuda::pack_pair<Element::kBf16>(x, y);
  cuda::unpack_pair<Element::kFp16>(halves[1], x, y);
  high = cuda::pack_pair<Element::kBf16>(x, y);
}

}  // namespace fa3::hopper::ptx
