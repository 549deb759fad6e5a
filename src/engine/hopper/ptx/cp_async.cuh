// SPDX-License-Identifier: Apache-2.0
// Copies by threads (cuda/ptx/cp_async.cuh) that an mbarrier waits for, and their addresses.
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/cp_async.cuh"

namespace fa3::hopper::ptx {

using cuda::cp_async_16;
using cuda::cp_async_commit_group;
using cuda::cp_async_wait_all;
using cuda::cp_async_wait_group;

// An address whose parts are added up here; the compiler would add them wherever it is used.
template <class T>
__device__ __forceinline__ const T* summed(const T* address) {
  asm("" : "+l"(address));
  return address;
}

// The barrier gets this thread's arrival, which it counts like any other, when all copies that the
// thread has begun are there. The thread goes on at once.
__device__ __forceinline__ void cp_async_mbarrier_arrive(uint32_t barrier) {
  cuda::disturb();
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

}  // namespace fa3::hopper::ptx
