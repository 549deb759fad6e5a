// SPDX-License-Identifier: Apache-2.0
// Numbers in global memory that say themselves whether they have been stored: until then they are
// kUnset, a NaN that no arithmetic gives. They are seen one by one, in any order (PTX ISA,
// "ld.relaxed").
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/disturb.cuh"

namespace fa3::hopper::ptx {

inline constexpr uint32_t kUnset = 0xffffffff;

__device__ __forceinline__ bool is_set(float x) {
  return __float_as_uint(x) != kUnset;
}
__device__ __forceinline__ bool is_set(const float4& x) {
  return is_set(x.x) && is_set(x.y) && is_set(x.z) && is_set(x.w);
}

__device__ __forceinline__ float load_relaxed(const float* pointer) {
  float x;
  asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(pointer) : "memory");
  return x;
}

__device__ __forceinline__ float4 load_relaxed(const float4* pointer) {
  float4 x;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
               : "l"(pointer)
               : "memory");
  return x;
}

__device__ __forceinline__ void store_relaxed(float* pointer, float x) {
  cuda::disturb();
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(pointer), "f"(x) : "memory");
}

__device__ __forceinline__ void store_relaxed(float4* pointer, float4 x) {
  cuda::disturb();
  asm volatile("st.relaxed.gpu.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "f"(x.x),
               "f"(x.y), "f"(x.z), "f"(x.w)
               : "memory");
}

// ---- Counters by which threads take turns: the next number, up to 2^31. Additions, also those
// that never wrap, would be made one of those of all lanes, which waits for its result at once ----

__device__ __forceinline__ unsigned count_on(unsigned* counter) {
  unsigned before;
  asm volatile("atom.relaxed.gpu.global.inc.u32 %0, [%1], 0x7fffffff;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  return before;
}

__device__ __forceinline__ unsigned count_on_shared(uint32_t counter) {
  unsigned before;
  asm volatile("atom.relaxed.cta.shared::cta.inc.u32 %0, [%1], 0x7fffffff;"
               : "=r"(before)
               : "r"(counter)
               : "memory");
  return before;
}

}  // namespace fa3::hopper::ptx
