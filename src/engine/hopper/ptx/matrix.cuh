// SPDX-License-Identifier: Apache-2.0
// Warp-wide stores of 8x8 matrices from accumulator-shaped registers (PTX ISA, "stmatrix").
#pragma once

#include <cstdint>

namespace fa3::hopper::ptx {

// Lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void stmatrix_x4(uint32_t smem, const uint32_t (&value)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(smem),
               "r"(value[0]), "r"(value[1]), "r"(value[2]), "r"(value[3])
               : "memory");
}

}  // namespace fa3::hopper::ptx
