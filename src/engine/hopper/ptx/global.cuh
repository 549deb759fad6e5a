// SPDX-License-Identifier: Apache-2.0
// Global memory that CTAs share: flags, counters and sums.
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/disturb.cuh"
#include "engine/cuda/ptx/sync.cuh"

namespace fa3::hopper::ptx {

// ---- A flag, by which a thread tells one of another CTA what it has stored (PTX ISA,
// "st.release", "ld.acquire"), and loads of that ----

// Stores of this thread, and of threads that met it at a barrier before, are seen by the thread
// that waits for the flag.
__device__ __forceinline__ void raise_flag(uint64_t* flag, uint64_t value) {
  cuda::disturb();
  asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
  cuda::disturb();
}

__device__ __forceinline__ void wait_for_flag(const uint64_t* flag, uint64_t value) {
  cuda::disturb();
  uint64_t found;
  do {
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(flag) : "memory");
  } while (found != value);
  cuda::disturb();
}

// Resets the flag for the next launch: in this one nobody looks at it again.
__device__ __forceinline__ void take_back_flag(uint64_t* flag, uint64_t value) {
  asm volatile("st.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

// Loads two neighbours that another CTA has stored, not from the L1 cache; zeros where the
// condition does not hold.
__device__ __forceinline__ void load_pair_if(bool condition, const float* pointer, float& first,
                                             float& second) {
  asm volatile(
      "{\n.reg .pred p;\n"
      "setp.ne.s32 p, %2, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\n"
      "@p ld.global.cg.v2.f32 {%0, %1}, [%3];\n}\n"
      : "=&f"(first), "=&f"(second)
      : "r"(int(condition)), "l"(pointer));
}

// ---- Numbers that CTAs change together (PTX ISA, "atom") ----

// Adds `value` and returns the number before. Stores of this thread, and of threads that met it at
// a barrier before, are seen by the threads that add later; this thread sees those of earlier ones.
__device__ __forceinline__ uint64_t add_in_order(uint64_t* at, uint64_t value) {
  uint64_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(at), "l"(value)
               : "memory");
  return before;
}

// Replaces the number if it still is `expected`, and returns whether it was.
__device__ __forceinline__ bool replace(uint64_t* at, uint64_t expected, uint64_t value) {
  uint64_t before;
  asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
               : "=l"(before)
               : "l"(at), "l"(expected), "l"(value)
               : "memory");
  return before == expected;
}

// ---- Counters by which CTAs take turns: what every GPU has ----

using cuda::add_release;
using cuda::ld_acquire;

// ---- Additions from registers, in any order with those of others ----

// To 16 bytes, aligned.
__device__ __forceinline__ void red_global_add_f32x4(float* pointer, const float (&value)[4]) {
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "f"(value[0]),
               "f"(value[1]), "f"(value[2]), "f"(value[3])
               : "memory");
}

}  // namespace fa3::hopper::ptx
