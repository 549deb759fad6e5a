// SPDX-License-Identifier: Apache-2.0
// Unpacks two elements of 16 bits to floats: the inverse of pack_pair().
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/fragment.h"

namespace fa3::cuda {

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

}  // namespace fa3::cuda
