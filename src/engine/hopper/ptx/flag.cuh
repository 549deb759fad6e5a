// SPDX-License-Identifier: Apache-2.0
// A flag in global memory, by which a thread tells one of another CTA what it has stored there (PTX
// ISA, "st.release", "ld.acquire"), and loads of that.
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/disturb.cuh"

namespace fa3::hopper::ptx {

// What this thread and those that a barrier has brought here have stored is seen by whoever has
// waited for the flag.
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

// For the next launch: in this one nobody looks at the flag again.
__device__ __forceinline__ void take_back_flag(uint64_t* flag, uint64_t value) {
  asm volatile("st.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}

// Two neighbours that another CTA has stored, past the first level of caches; zeros where the
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

}  // namespace fa3::hopper::ptx
