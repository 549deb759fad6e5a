// SPDX-License-Identifier: Apache-2.0
// The cache's gradient from its sums: a CTA for a row, a thread for the four columns whose sums lie
// together.
#include "core/ceil_div.h"
#include "engine/cuda/host/launch.h"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/latent/backward/latent_backward_params.h"

namespace fa3::hopper {
namespace {

constexpr int kOwn = 4;  // columns of a thread

__global__ void store_cache_gradient_kernel(const __grid_constant__ LatentBackwardParams params) {
  const MlaBackwardProblem& p = params.problem;
  const int row = int(blockIdx.x), page = row / params.page_size;
  const int in_page = row - page * params.page_size;
  const int first = int(threadIdx.x) * kOwn;
  if (first >= p.head_dim) return;  // of the last warp
  const float4 sums = *reinterpret_cast<const float4*>(params.sums + row * p.head_dim + first);
  const float of[kOwn] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int column = column_of_sum(first + i);
    if (p.d_cache.dtype == DType::float32) {
      p.d_cache.at<float>(page, in_page, 0)[column] = of[i];
    } else if (p.d_cache.dtype == DType::float16) {
      p.d_cache.at<uint16_t>(page, in_page, 0)[column] =
          uint16_t(cuda::pack_pair<cuda::Element::kFp16>(of[i], 0.0f));
    } else {
      p.d_cache.at<uint16_t>(page, in_page, 0)[column] =
          uint16_t(cuda::pack_pair<cuda::Element::kBf16>(of[i], 0.0f));
    }
  }
}

}  // namespace

cudaError_t store_cache_gradient(const LatentBackwardParams& params, cudaStream_t stream) {
  LatentBackwardParams copy = params;
  const int warps = int(ceil_div(params.problem.head_dim, kOwn * cuda::kWarpSize));
  return cuda::launch(reinterpret_cast<const void*>(&store_cache_gradient_kernel),
                      dim3(unsigned(params.cache_rows())), warps * cuda::kWarpSize, 0, &copy, {},
                      stream);
}

}  // namespace fa3::hopper
