// SPDX-License-Identifier: Apache-2.0
// Which thread this is. How many lanes share a warp's work (the model of the SM has one), and which
// of them arrive at a barrier when all are done: lane 0, for its warp. compute-sanitizer's
// racecheck does not follow those that it speaks for, so in a build for it (FA3_EVERY_LANE_ARRIVES)
// each arrives itself.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"

namespace fa3::hopper::ptx {

inline constexpr int kLanes = 32;

__device__ __forceinline__ int lane() {
  return int(threadIdx.x) % kLanes;
}

#ifdef FA3_EVERY_LANE_ARRIVES
inline constexpr bool kEveryLaneArrives = true;
#else
inline constexpr bool kEveryLaneArrives = false;
#endif
inline constexpr int kArrivalsOfWarp = kEveryLaneArrives ? kLanes : 1;

// An object in shared memory, by an address that the compiler takes for that of another. A common
// address of several branches stays in one register for all of them, or is spilled for all of them
// if one has few registers: with apart() a branch has an address of its own.
template <class T>
__device__ __forceinline__ T& apart(T& shared) {
  uint32_t address = cuda::cvta_to_shared(&shared);
  asm volatile("" : "+r"(address));
  return *reinterpret_cast<T*>(__cvta_shared_to_generic(address));
}

// blockIdx.x, read where this stands, so that what follows from it and is used at the end alone
// takes no register in the loop before.
__device__ __forceinline__ unsigned block_in_grid() {
  unsigned x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}

}  // namespace fa3::hopper::ptx
