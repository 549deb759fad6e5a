// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "engine/cuda/ptx/smem.cuh"
#include "instructions.h"

namespace fa3::hopper::ptx {

using cuda::ld_shared_b32;
using cuda::ld_shared_b32x2;
using cuda::ld_shared_b32x4;
using cuda::ld_shared_f32x2;
using cuda::ld_shared_f32x4;
using cuda::ldmatrix_x4;
using cuda::ldmatrix_x4_trans;
using cuda::st_shared_b32;
using cuda::st_shared_b32x4;
using cuda::st_shared_f32x4;

inline void stmatrix_x4(uint32_t row, const uint32_t (&)[4]) {
  machine::store_shared(row);
}
inline void stmatrix_x4_trans(uint32_t row, const uint32_t (&)[4]) {
  machine::store_shared(row);
}

}  // namespace fa3::hopper::ptx
