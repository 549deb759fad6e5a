// SPDX-License-Identifier: Apache-2.0
// Atomic additions to memory that return nothing. Also compiles as plain C++.
#pragma once

namespace fa3::cuda {

__device__ __forceinline__ void add_to_memory(float* place, float value) {
#ifdef __CUDACC__
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(place), "f"(value) : "memory");
#else
  *place += value;
#endif
}

}  // namespace fa3::cuda
