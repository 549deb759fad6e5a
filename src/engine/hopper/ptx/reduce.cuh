// SPDX-License-Identifier: Apache-2.0
// Additions to global memory straight from registers, in any order with those of others.
#pragma once

namespace fa3::hopper::ptx {

// 16 bytes, aligned.
__device__ __forceinline__ void red_global_add_f32x4(float* pointer, const float (&value)[4]) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "f"(value[0]),
               "f"(value[1]), "f"(value[2]), "f"(value[3])
               : "memory");
}

}  // namespace fa3::hopper::ptx
