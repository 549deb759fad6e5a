// SPDX-License-Identifier: Apache-2.0
// Asking an mbarrier without waiting (PTX ISA, "mbarrier.test_wait").
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/disturb.cuh"

namespace fa3::hopper::ptx {

// Whether the phase of the given parity has completed; returns at once.
__device__ __forceinline__ bool mbarrier_test_parity(uint32_t barrier, uint32_t parity) {
  cuda::disturb();
  uint32_t done;
  asm volatile(
      "{\n.reg .pred p;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "selp.u32 %0, 1, 0, p;\n}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

}  // namespace fa3::hopper::ptx
