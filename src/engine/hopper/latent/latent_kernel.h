// SPDX-License-Identifier: Apache-2.0
// The latent kernels that this build has.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/hopper/latent/latent_params.h"

namespace fa3::hopper {

struct LatentKernel {
  const void* function = nullptr;
  int threads = 0;
  int smem_bytes = 0;
};

// rows: 16, 32 or 64; dtype, of queries: float16 or bfloat16, which rows of bytes need.
LatentKernel latent_kernel_of(int rows, int64_t head_dim, DType dtype, bool is_group128);

// Queues the kernel that makes rows of parts, and writes packed rows that no sequence has.
cudaError_t combine_latent(const LatentParams& params, cudaStream_t stream);

}  // namespace fa3::hopper
