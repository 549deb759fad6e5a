// SPDX-License-Identifier: Apache-2.0
// Arithmetic of pairs of fp16, as pack_pair makes them.
#pragma once

#include <cstdint>

namespace fa3::hopper::ptx {

// a * b + c of each, rounded once.
__device__ __forceinline__ uint32_t fma_f16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

}  // namespace fa3::hopper::ptx
