// SPDX-License-Identifier: Apache-2.0
// Who I am.
#pragma once

namespace fa3::cuda {

// threadIdx.x, read again at each call: in rare code a register is worth more than the read.
__device__ __forceinline__ unsigned thread_in_block() {
  unsigned x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

}  // namespace fa3::cuda
