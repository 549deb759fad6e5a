// SPDX-License-Identifier: Apache-2.0
// lse = log sum_i exp(lse_i), o = sum_i exp(lse_i - lse) o_i, one warp a row of a head. Limited by
// memory bandwidth, so nothing is kept between the two passes over the partials' lse.
#include "engine/cuda/kernels/merge.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "core/error.h"
#include "engine/cuda/host/device.h"
#include "engine/cuda/ptx/fragment.h"

namespace fa3::cuda {
namespace {

constexpr int kWarpsPerBlock = 8;
constexpr int64_t kMostCtas = 1 << 20;  // beyond, warps take several rows
constexpr float kInfinity = __builtin_inff();

// exp(x - shift). Partials of an infinite lse share the row.
__device__ float weight_of(float x, float shift) {
  return x == shift ? 1.0f : expf(x - shift);
}

// Lanes share out the columns. Outputs may be one of the partials: a lane reads a column of all of
// them before it writes it, and all lanes are done with the lse before lane 0 writes that.
template <class Out>
__device__ void merge_one_row(const MergeProblem& p, int64_t batch, int64_t row, int64_t head) {
  const int lane = threadIdx.x % kWarpSize;
  const float* const lse_partial = p.lse_partial.data + batch * p.lse_partial.batch_stride +
                                   head * p.lse_partial.head_stride +
                                   row * p.lse_partial.row_stride;
  const float* const o_partial = p.o_partial.at<const float>(batch, row, head);
  // What lies apart is the last.
  const float* const lse_other = p.other.lse.data + batch * p.other.lse.batch_stride +
                                 head * p.other.lse.head_stride + row * p.other.lse.row_stride;
  const float* const o_other = p.other.o.at<const float>(batch, row, head);
  const int64_t count = p.num_partials + (p.other.on ? 1 : 0);
  const auto lse_of = [&](int64_t i) {
    return i == p.num_partials ? *lse_other : lse_partial[i * p.lse_partial_stride];
  };
  float max = -kInfinity;
  for (int64_t i = 0; i < count; ++i) max = fmaxf(max, lse_of(i));
  const float shift = max == -kInfinity ? 0.0f : max;
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += weight_of(lse_of(i), shift);
  const float lse = sum == 0 ? -kInfinity : shift + logf(sum);
  const float inverse = sum == 0 ? 0.0f : 1 / sum;
  Out* const o = static_cast<Out*>(p.o.data) + batch * p.o.batch_stride + row * p.o.row_stride +
                 head * p.o.head_stride;
  for (int64_t c = lane; c < p.head_dim_v; c += kWarpSize) {
    float value = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float weight = weight_of(lse_of(i), shift) * inverse;
      const float* const o_i = i == p.num_partials ? o_other : o_partial + i * p.o_partial_stride;
      // A partial without keys has weight 0 and counts for nothing, whatever its o holds.
      if (weight != 0) value += weight * o_i[c];
    }
    o[c] = Out(value);
  }
  __syncwarp();
  if (p.lse.data != nullptr && lane == 0) {
    p.lse.data[batch * p.lse.batch_stride + head * p.lse.head_stride + row * p.lse.row_stride] =
        lse;
  }
}

template <class Out>
__global__ void merge_kernel(const __grid_constant__ MergeProblem p) {
  const int64_t all = p.batch * p.rows * p.heads;
  const int64_t step = int64_t{gridDim.x} * kWarpsPerBlock;
  for (int64_t i = int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / kWarpSize; i < all;
       i += step) {
    merge_one_row<Out>(p, i / (p.rows * p.heads), i / p.heads % p.rows, i % p.heads);
  }
}

template <class Out>
cudaError_t launch(const MergeProblem& p, cudaStream_t stream) {
  const int64_t warps = p.batch * p.rows * p.heads;
  if (warps == 0) return cudaSuccess;
  const int64_t blocks = std::min((warps + kWarpsPerBlock - 1) / kWarpsPerBlock, kMostCtas);
  merge_kernel<Out><<<dim3(unsigned(blocks)), kWarpsPerBlock * kWarpSize, 0, stream>>>(p);
  return cudaPeekAtLastError();
}

}  // namespace

Status run_merge(const MergeProblem& problem, void* stream) {
  const DeviceScope scope(problem.device_index);
  cudaError_t error = scope.error();
  const auto on = static_cast<cudaStream_t>(stream);
  if (error == cudaSuccess) {
    error = problem.o.dtype == DType::float32   ? launch<float>(problem, on)
            : problem.o.dtype == DType::float16 ? launch<__half>(problem, on)
                                                : launch<__nv_bfloat16>(problem, on);
  }
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // leave none behind for the caller's own CUDA code
  return {StatusCode::device_error, concat("merge: ", cudaGetErrorString(error))};
}

}  // namespace fa3::cuda
