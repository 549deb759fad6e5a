// SPDX-License-Identifier: Apache-2.0
// Atomic additions to memory that return nothing; on the host, where score functions are tested,
// plain ones.
#pragma once

#include "core/macros.h"

namespace fa3::cuda {

FA3_HD inline void add_to_memory(float* place, float value) {
#ifdef __CUDA_ARCH__
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(place), "f"(value) : "memory");
#else
  *place += value;
#endif
}

}  // namespace fa3::cuda
