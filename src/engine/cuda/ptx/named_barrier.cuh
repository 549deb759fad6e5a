// SPDX-License-Identifier: Apache-2.0
// Barriers of some of a CTA's warps, by number: those that sync wait until `threads` threads have
// come, those that arrive go on at once. What a thread has written before it comes is there for
// those that wait.
#pragma once

#include "engine/cuda/ptx/disturb.cuh"

namespace fa3::cuda {

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
