// SPDX-License-Identifier: Apache-2.0
// Copies from global to shared memory by threads (PTX ISA, "cp.async", not bulk): 16 bytes each.
#pragma once

#include <cstdint>

#include "engine/hopper/ptx/disturb.cuh"

namespace fa3::hopper::ptx {

// An address whose parts are added up here; the compiler would add them wherever it is used.
template <class T>
__device__ __forceinline__ const T* summed(const T* address) {
  asm("" : "+l"(address));
  return address;
}

// Zeros, and nothing is read, where the source does not exist. Past the L1 cache.
__device__ __forceinline__ void cp_async_16(uint32_t smem, const void* global, bool exists) {
  asm volatile(
      "{\n.reg .pred missing;\n"
      "setp.eq.s32 missing, %2, 0;\n"
      "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, missing;\n}\n" ::"r"(smem),
      "l"(global), "r"(int(exists))
      : "memory");
}

// The barrier gets this thread's arrival, which it counts like any other, when all copies that the
// thread has begun are there. The thread goes on at once.
__device__ __forceinline__ void cp_async_mbarrier_arrive(uint32_t barrier) {
  disturb();
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
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

}  // namespace fa3::hopper::ptx
