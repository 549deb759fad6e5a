// SPDX-License-Identifier: Apache-2.0
// Loads and stores of global memory, as wide as they are meant: the compiler splits what it cannot
// align.
#pragma once

#include <cstdint>

namespace fa3::cuda {

// 16 bytes, or zeros where the condition does not hold.
__device__ __forceinline__ void load_global_if(bool condition, const void* pointer,
                                               uint32_t (&value)[4]) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.s32 p, %4, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.v4.b32 {%0, %1, %2, %3}, [%5];\n}\n"
      : "=&r"(value[0]), "=&r"(value[1]), "=&r"(value[2]), "=&r"(value[3])
      : "r"(int(condition)), "l"(pointer)
      : "memory");
}

// 16 bytes, where the condition holds.
__device__ __forceinline__ void store_global_if(bool condition, void* pointer,
                                                const uint32_t (&value)[4]) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.s32 p, %0, 0;\n"
      "@p st.global.v4.b32 [%1], {%2, %3, %4, %5};\n}\n" ::"r"(int(condition)),
      "l"(pointer), "r"(value[0]), "r"(value[1]), "r"(value[2]), "r"(value[3])
      : "memory");
}

__device__ __forceinline__ void store_global_if(bool condition, float* pointer, float value) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.s32 p, %0, 0;\n"
      "@p st.global.f32 [%1], %2;\n}\n" ::"r"(int(condition)),
      "l"(pointer), "f"(value)
      : "memory");
}

}  // namespace fa3::cuda
