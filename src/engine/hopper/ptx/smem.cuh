// SPDX-License-Identifier: Apache-2.0
// Shared memory written and read by threads: what cuda/ptx/smem.cuh has, and stores of matrices.
// What wgmma or TMA is to read afterwards needs a fence (sync.cuh) between the store and the
// barrier.
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/smem.cuh"

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

// Four 8 x 8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8,
// and holds of each matrix two neighbours of row l / 4.
__device__ __forceinline__ void stmatrix_x4(uint32_t row, const uint32_t (&matrices)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
               : "memory");
}

// stmatrix_x4() of transposed matrices: a lane's neighbours lie in two rows.
__device__ __forceinline__ void stmatrix_x4_trans(uint32_t row, const uint32_t (&matrices)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(matrices[0]), "r"(matrices[1]), "r"(matrices[2]), "r"(matrices[3])
               : "memory");
}

}  // namespace fa3::hopper::ptx
