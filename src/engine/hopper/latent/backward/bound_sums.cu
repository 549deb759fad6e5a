// SPDX-License-Identifier: Apache-2.0
// Before a deterministic call: what bounds the contributions to each row of the cache, and the
// power of two that follows. Largest numbers and counts, so the order of threads does not matter.
//
// What is not finite is left out: it makes NaN of all that it is multiplied with, which is no sum.
#include "core/ceil_div.h"
#include "engine/cuda/host/launch.h"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/unpack.cuh"
#include "engine/hopper/latent/backward/latent_backward_params.h"
#include "engine/hopper/latent/latent_finish.cuh"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/ptx/integer_sums.cuh"

namespace fa3::hopper {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * cuda::kWarpSize;

__device__ __forceinline__ bool is_finite(float x) {
  return fabsf(x) < cuda::kInfinity;
}

// Visits the magnitude of each finite number that a lane has of a row's first columns.
template <cuda::Element E, int Columns, class Visit>
__device__ __forceinline__ void visit_magnitudes(const uint16_t* row, const Visit& visit) {
  constexpr int kOfLane = 8;
#pragma unroll
  for (int first = 0; first < Columns; first += kOfLane * cuda::kWarpSize) {
    const int column = first + ptx::lane() * kOfLane;
    if (column >= Columns) continue;
    const uint4 vector = __ldg(reinterpret_cast<const uint4*>(row + column));
    for (const uint32_t pair : {vector.x, vector.y, vector.z, vector.w}) {
      float low, high;
      cuda::unpack_pair<E>(pair, low, high);
      if (is_finite(low)) visit(fabsf(low));
      if (is_finite(high)) visit(fabsf(high));
    }
  }
}

template <cuda::Element E, int Columns>
__device__ __forceinline__ float largest_of(const uint16_t* row) {
  float most = 0.0f;
  visit_magnitudes<E, Columns>(row, [&](float x) { most = fmaxf(most, x); });
#pragma unroll
  for (int distance = cuda::kWarpSize / 2; distance > 0; distance /= 2) {
    most = fmaxf(most, __shfl_xor_sync(0xffffffff, most, distance));
  }
  return most;
}

template <cuda::Element E, int Columns>
__device__ __forceinline__ double sum_of(const uint16_t* row) {
  double sum = 0;
  visit_magnitudes<E, Columns>(row, [&](float x) { sum += double(x); });
#pragma unroll
  for (int distance = cuda::kWarpSize / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(0xffffffff, sum, distance);
  }
  return sum;
}

// By a warp: what a head adds to a column of a row that its token names.
template <cuda::Element E, int HeadDim>
__device__ __forceinline__ void add_head(const MlaBackwardProblem& p, const ResultRow& at,
                                         double& fixed, double& of_value) {
  constexpr int kValues = int(kLatentValueDim);
  const auto row = [&](const Operand& of) { return of.at<uint16_t>(at.b, at.row, at.head); };
  const double of_ds = fabs(double(p.scale)) * largest_of<E, HeadDim>(row(p.q));
  const double d_o = largest_of<E, kValues>(row(p.d_o)), o = sum_of<E, kValues>(row(p.o));
  // Where the LSE is -inf its gradient may be anything.
  const bool has_d_lse = p.d_lse.data != nullptr && *at.of(p.lse) != -cuda::kInfinity;
  const float d_lse = has_d_lse ? *at.of(p.d_lse) : 0.0f;
  fixed += d_o + of_ds * (d_o * o + (is_finite(d_lse) ? fabs(double(d_lse)) : 0.0));
  of_value += of_ds * d_o;
}

}  // namespace

// A CTA for a token.
template <cuda::Element E, int HeadDim>
__global__ void __launch_bounds__(kThreads)
    bound_rows_kernel(const __grid_constant__ LatentBackwardParams params) {
  extern __shared__ __align__(16) unsigned char raw_smem[];
  auto& of_warps = *reinterpret_cast<double(*)[2][kWarps]>(raw_smem);
  const MlaBackwardProblem& p = params.problem;
  const int b = int(blockIdx.x) / params.tokens, token = int(blockIdx.x) - b * params.tokens;
  const int thread = int(threadIdx.x), warp = thread / cuda::kWarpSize;
  double fixed = 0, of_value = 0;
  for (int head = warp; head < p.heads; head += kWarps) {
    add_head<E, HeadDim>(p, {int64_t{b}, int64_t{token}, int64_t{head}}, fixed, of_value);
  }
  if (ptx::lane() == 0) of_warps[0][warp] = fixed, of_warps[1][warp] = of_value;
  __syncthreads();
  fixed = of_value = 0;
  for (int i = 0; i < kWarps; ++i) fixed += of_warps[0][i], of_value += of_warps[1][i];
  const int32_t* const indices = p.keys.of(b, token);
  const int64_t count = p.keys.count_of(b, token);
  for (int64_t i = thread; i < count; i += kThreads) {
    const int row = __ldg(indices + i);
    if (row < 0 || row >= params.cache_rows()) continue;
    RowBound& bound = params.bounds[row];
    ptx::red_global_add(&bound.additions, 1);
    cuda::raise_to(&bound.fixed, float(fixed));
    cuda::raise_to(&bound.of_value, float(of_value));
  }
}

// A warp for a row of the cache. What no token names is not read.
template <cuda::Element E>
__global__ void __launch_bounds__(kThreads)
    scale_rows_kernel(const __grid_constant__ LatentBackwardParams params) {
  const int row = int(blockIdx.x) * kWarps + int(threadIdx.x) / cuda::kWarpSize;
  if (row >= params.cache_rows()) return;
  const RowBound bound = params.bounds[row];
  double values = 0;
  if (bound.additions > 0) {
    const int page = row / params.page_size;
    const std::byte* const latent =
        params.problem.keys.cache.latent.at(page, row - page * params.page_size);
    values = sum_of<E, int(kLatentValueDim)>(reinterpret_cast<const uint16_t*>(latent));
  }
  if (ptx::lane() == 0) params.scales[row] = row_scale(bound, values, params.weight_factor);
}

namespace {

template <cuda::Element E>
cudaError_t scale(LatentBackwardParams params, cudaStream_t stream) {
  const auto bound =
      params.problem.head_dim == 576 ? &bound_rows_kernel<E, 576> : &bound_rows_kernel<E, 512>;
  const cudaError_t error =
      cuda::launch(reinterpret_cast<const void*>(bound), dim3(unsigned(params.all_tokens())),
                   kThreads, 2 * kWarps * int(sizeof(double)), &params, {}, stream);
  if (error != cudaSuccess) return error;
  return cuda::launch(reinterpret_cast<const void*>(&scale_rows_kernel<E>),
                      dim3(unsigned(ceil_div(params.cache_rows(), kWarps))), kThreads, 0, &params,
                      {}, stream);
}

}  // namespace

cudaError_t scale_integer_sums(const LatentBackwardParams& params, cudaStream_t stream) {
  return params.problem.dtype == DType::float16 ? scale<cuda::Element::kFp16>(params, stream)
                                                : scale<cuda::Element::kBf16>(params, stream);
}

}  // namespace fa3::hopper
