// SPDX-License-Identifier: Apache-2.0
// Global memory that nobody writes while the kernel runs. Loads are volatile: they begin where they
// stand, not where their number is needed.
#pragma once

#include <cstdint>

namespace fa3::hopper::ptx {

__device__ __forceinline__ void load_constant(const void* pointer, uint32_t (&value)[4]) {
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value[0]), "=r"(value[1]), "=r"(value[2]), "=r"(value[3])
               : "l"(pointer));
}

__device__ __forceinline__ uint32_t load_constant(const void* pointer) {
  uint32_t value;
  asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(value) : "l"(pointer));
  return value;
}

}  // namespace fa3::hopper::ptx
