// SPDX-License-Identifier: Apache-2.0
// Which CTA this is, read again at each call.
#pragma once

namespace fa3::hopper::ptx {

// blockIdx.x, of which nothing can be computed before: what is used at the end alone then takes no
// register in the loop before it.
__device__ __forceinline__ unsigned block_in_grid() {
  unsigned x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
}

}  // namespace fa3::hopper::ptx
