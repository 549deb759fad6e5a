// SPDX-License-Identifier: Apache-2.0
// The same object in shared memory, by an address that the compiler takes for another one. What
// branches of a kernel hold in common stays in one register for all of them, or is spilled for all
// of them where one has few registers: this gives a branch an address of its own.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"

namespace fa3::hopper::ptx {

template <class T>
__device__ __forceinline__ T& apart(T& shared) {
  uint32_t address = cuda::cvta_to_shared(&shared);
  asm volatile("" : "+r"(address));
  return *reinterpret_cast<T*>(__cvta_shared_to_generic(address));
}

}  // namespace fa3::hopper::ptx
