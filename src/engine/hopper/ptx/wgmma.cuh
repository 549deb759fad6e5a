// SPDX-License-Identifier: Apache-2.0
// Warpgroup matrix multiply (PTX ISA, "wgmma"): ordering instructions, and the multiplies
// themselves, written by tools/gen_wgmma.py: wgmma_m64k16_ss<element, major of A, major of B> with
// both operands in shared memory, wgmma_m64k16_rs<element, major of B> with A in registers;
// wgmma_m64k32_ss and _rs for e4m3, whose operands are all Major::kK. Next: ../tile/gemm.cuh.
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/tile/tile_layout.h"

namespace fa3::hopper::ptx {

using cuda::Element;
using cuda::Major;

// Before the first multiply, and whenever ordinary code wrote registers a multiply reads.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most Pending of the newest groups are unfinished.
template <int Pending>
__device__ __forceinline__ void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

#include "engine/hopper/ptx/wgmma_atoms.inc"

}  // namespace fa3::hopper::ptx
