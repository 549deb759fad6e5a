// SPDX-License-Identifier: Apache-2.0
// Counters in global memory by which CTAs take turns: what was stored or added before a
// release is seen after the acquire that reads it.
#pragma once

namespace fa3::cuda {

__device__ __forceinline__ int ld_acquire(const int* counter) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// On behalf of every thread whose additions a barrier has made visible to this one.
__device__ __forceinline__ void add_release(int* counter, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

}  // namespace fa3::cuda
