// SPDX-License-Identifier: Apache-2.0
// Copies from global to shared memory by threads (PTX ISA, "cp.async", not bulk), of 16, 8 or 4
// bytes each.
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/disturb.cuh"

namespace fa3::cuda {

// Copies 16 bytes past the L1 cache; zeros, and nothing is read, where the source does not exist.
__device__ __forceinline__ void cp_async_16(uint32_t smem, const void* global, bool exists) {
  asm volatile(
      "{\n.reg .pred missing;\n"
      "setp.eq.s32 missing, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, missing;\n}\n" ::"r"(smem),
      "l"(global), "r"(int(exists))
      : "memory");
}

// The first `bytes` of Width come from the source, which is aligned to Width and of which nothing
// else is read; behind them come zeros.
template <int Width>
__device__ __forceinline__ void cp_async_first(uint32_t smem, const void* global, int bytes) {
  static_assert(Width == 16 || Width == 8 || Width == 4);
  if constexpr (Width == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(smem), "l"(global),
                 "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(smem), "l"(global),
                 "n"(Width), "r"(bytes)
                 : "memory");
  }
}

// The thread's copies since the last group are one, even if there are none.
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `Newest` groups are in flight.
template <int Newest>
__device__ __forceinline__ void cp_async_wait_group() {
  disturb();
  asm volatile("cp.async.wait_group %0;" ::"n"(Newest) : "memory");
  disturb();
}

__device__ __forceinline__ void cp_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace fa3::cuda
