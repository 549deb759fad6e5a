// SPDX-License-Identifier: Apache-2.0
// Integers in global memory that CTAs add to or raise: their bits are the same in any order.
#pragma once

#include <cstdint>

namespace fa3::hopper::ptx {

__device__ __forceinline__ void red_global_add(int64_t* pointer, int64_t value) {
  asm volatile("red.global.add.u64 [%0], %1;" ::"l"(pointer), "l"(value) : "memory");
}

// Raises the number there to `value`.
__device__ __forceinline__ void red_global_max(int64_t* pointer, int64_t value) {
  asm volatile("red.global.max.s64 [%0], %1;" ::"l"(pointer), "l"(value) : "memory");
}

}  // namespace fa3::hopper::ptx
