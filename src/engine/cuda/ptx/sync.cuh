// SPDX-License-Identifier: Apache-2.0
// Who waits for whom: CTAs by counters in global memory, warps of a CTA by named barriers.
#pragma once

#include "engine/cuda/ptx/disturb.cuh"

namespace fa3::cuda {

// CTAs take turns by counters: what was stored or added before a release is seen after the acquire
// that reads it.
__device__ __forceinline__ int ld_acquire(const int* counter) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
  return value;
}

// On behalf of every thread whose additions a barrier has made visible to this one.
__device__ __forceinline__ void add_release(int* counter, int value) {
  asm volatile("red.release.gpu.global.add.s32 [%0], %1;" ::"l"(counter), "r"(value) : "memory");
}

// Barriers of some of a CTA's warps, by number: those that sync wait until `threads` threads have
// come, those that arrive go on at once. What a thread has written before it comes is there for
// those that wait.
__device__ __forceinline__ void bar_sync(int id, int threads) {
  disturb();
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
  disturb();
}

__device__ __forceinline__ void bar_arrive(int id, int threads) {
  disturb();
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace fa3::cuda
