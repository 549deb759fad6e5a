// SPDX-License-Identifier: Apache-2.0
// A number in global memory that CTAs change together (PTX ISA, "atom").
#pragma once

#include <cstdint>

namespace fa3::hopper::ptx {

// What was there. What this thread and those that a barrier has brought here have stored is seen by
// whoever finds the sum; this thread sees what the threads before it stored.
__device__ __forceinline__ uint64_t add_in_order(uint64_t* at, uint64_t value) {
  uint64_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(at), "l"(value)
               : "memory");
  return before;
}

// If it still is what was expected.
__device__ __forceinline__ bool replace(uint64_t* at, uint64_t expected, uint64_t value) {
  uint64_t before;
  asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(at), "l"(expected), "l"(value)
               : "memory");
  return before == expected;
}

}  // namespace fa3::hopper::ptx
