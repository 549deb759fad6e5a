// SPDX-License-Identifier: Apache-2.0
// The kernels of the latent backward that this build has.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/hopper/latent/backward/latent_backward_params.h"

namespace fa3::hopper {

struct LatentBackwardKernel {
  const void* function = nullptr;
  int threads = 0;
  int smem_bytes = 0;
};

// dtype: float16 or bfloat16.
LatentBackwardKernel latent_backward_kernel_of(int64_t head_dim, DType dtype);

// Queues the kernel that writes d_cache from the sums.
cudaError_t store_cache_gradient(const LatentBackwardParams& params, cudaStream_t stream);

}  // namespace fa3::hopper
