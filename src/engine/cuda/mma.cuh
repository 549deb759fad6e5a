// SPDX-License-Identifier: Apache-2.0
// The matrix multiply of one warp (PTX ISA, "mma.sync").
#pragma once

#include <cstdint>

#include "engine/cuda/element.h"

namespace fa3::cuda {

// d[0..4) += A B, A 16 by 16, B 16 by 8.
template <Element E>
__device__ __forceinline__ void mma_m16n8k16(float* d, const uint32_t (&a)[4],
                                             const uint32_t (&b)[2]) {
  if constexpr (E == Element::kBf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

}  // namespace fa3::cuda
