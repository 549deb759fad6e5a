// SPDX-License-Identifier: Apache-2.0
// Appending to latent caches and reading their rows: a warp a row, or a head of a row's queries.
#include "engine/cuda/kernels/latent_rows.cuh"

#include <algorithm>

#include "engine/cuda/host/device.h"
#include "engine/cuda/host/launch.h"
#include "engine/cuda/kernels/kernels.h"

namespace fa3::cuda {
namespace {

constexpr int kRowWarps = 8;            // of a CTA
constexpr int64_t kMostCtas = 1 << 20;  // beyond, warps take several rows

// Calls action(i) for each of `count` numbers, by one warp.
template <class Action>
__device__ void for_each_of_warps(int64_t count, const Action& action) {
  const int64_t step = int64_t{gridDim.x} * kRowWarps;
  for (int64_t i = int64_t{blockIdx.x} * kRowWarps + threadIdx.x / kWarpSize; i < count;
       i += step) {
    action(i);
  }
}

template <class T>
__global__ void __launch_bounds__(kRowWarps* kWarpSize)
    append_latent_kernel(const __grid_constant__ MlaAppendProblem p) {
  for_each_of_warps(p.rows * (1 + p.heads), [&](int64_t i) {
    if (i < p.rows) {
      append_latent_row<T>(p, i);
    } else {
      turn_latent_query<T>(p, (i - p.rows) / p.heads, (i - p.rows) % p.heads);
    }
  });
}

template <class T>
__global__ void __launch_bounds__(kRowWarps* kWarpSize)
    gather_latent_kernel(const __grid_constant__ MlaGatherProblem p) {
  for_each_of_warps(p.rows, [&](int64_t i) { gather_latent_row<T>(p, i); });
}

template <class Problem>
using RowKernel = void (*)(Problem);

// Queues the kernel of the type.
template <class Problem>
Status launch_rows(const Problem& problem, DType dtype, int64_t warps, RowKernel<Problem> of_float,
                   RowKernel<Problem> of_half, RowKernel<Problem> of_bf16, void* stream,
                   const char* what) {
  const DeviceScope scope(problem.device_index);
  cudaError_t error = scope.error();
  const auto kernel = dtype == DType::float32   ? of_float
                      : dtype == DType::float16 ? of_half
                                                : of_bf16;
  Problem copy = problem;
  const int64_t ctas = std::min((warps + kRowWarps - 1) / kRowWarps, kMostCtas);
  if (error == cudaSuccess) {
    error = launch(reinterpret_cast<const void*>(kernel), dim3(unsigned(ctas)),
                   kRowWarps * kWarpSize, 0, &copy, {}, static_cast<cudaStream_t>(stream));
  }
  return finish(error, what);
}

}  // namespace

Status run_mla_append(const MlaAppendProblem& p, void* stream) {
  return launch_rows<MlaAppendProblem>(p, p.dtype, p.rows * (1 + p.heads),
                                       append_latent_kernel<float>, append_latent_kernel<__half>,
                                       append_latent_kernel<__nv_bfloat16>, stream, "mla append");
}

Status run_mla_gather(const MlaGatherProblem& p, void* stream) {
  return launch_rows<MlaGatherProblem>(p, p.o.dtype, p.rows, gather_latent_kernel<float>,
                                       gather_latent_kernel<__half>,
                                       gather_latent_kernel<__nv_bfloat16>, stream, "mla gather");
}

}  // namespace fa3::cuda
