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

// What a row's sums from place `first` on give. Integers: the sums of deterministic calls.
template <bool Integers>
__device__ __forceinline__ void load_gradients(const LatentBackwardParams& params, int row,
                                               int first, float (&of)[kOwn]) {
  const int64_t at = row * params.problem.head_dim + first;
  if constexpr (Integers) {
    const RowScale scale = params.scales[row];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      of[i] = gradient_of(params.integer_sums[at + i], scale, params.weight_factor);
    }
  } else {
    const float4 sums = *reinterpret_cast<const float4*>(params.sums + at);
    of[0] = sums.x, of[1] = sums.y, of[2] = sums.z, of[3] = sums.w;
  }
}

template <bool Integers>
__global__ void store_cache_gradient_kernel(const __grid_constant__ LatentBackwardParams params) {
  const MlaBackwardProblem& p = params.problem;
  const int row = int(blockIdx.x), page = row / params.page_size;
  const int in_page = row - page * params.page_size;
  const int first = int(threadIdx.x) * kOwn;
  if (first >= p.head_dim) return;  // of the last warp
  float of[kOwn];
  load_gradients<Integers>(params, row, first, of);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int column = Integers ? column_of_integer_sum(first + i) : column_of_sum(first + i);
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
  const auto kernel = params.problem.deterministic ? &store_cache_gradient_kernel<true>
                                                   : &store_cache_gradient_kernel<false>;
  return cuda::launch(reinterpret_cast<const void*>(kernel), dim3(unsigned(params.cache_rows())),
                      warps * cuda::kWarpSize, 0, &copy, {}, stream);
}

}  // namespace fa3::hopper
