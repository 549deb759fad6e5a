// SPDX-License-Identifier: Apache-2.0
// See transpose_ahead.h.
#include "engine/hopper/fp8/transpose_ahead.cuh"

#include <algorithm>

#include "engine/cuda/host/launch.h"

namespace fa3::hopper {
namespace {

__global__ void clear(int* parts_done, int64_t heads, int* tile_counter) {
  ptx::griddepcontrol_launch_dependents();
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < heads; i += step) {
    parts_done[i] = 0;
  }
  if (tile_counter && blockIdx.x + threadIdx.x == 0) *tile_counter = 0;
}

}  // namespace

cudaError_t transpose_ahead(const TransposeAhead& params, cudaStream_t stream) {
  constexpr int64_t kThreads = 512, kMostCtas = 64;
  const int64_t ctas = std::min((params.order.heads + kThreads - 1) / kThreads, kMostCtas);
  clear<<<unsigned(ctas), unsigned(kThreads), 0, stream>>>(params.parts_done, params.order.heads,
                                                           params.values.tile_counter);
  if (const cudaError_t error = cudaPeekAtLastError(); error != cudaSuccess) return error;
  TransposeAhead copy = params;
  return cuda::launch(reinterpret_cast<const void*>(&transpose_ahead_kernel),
                      dim3(unsigned(params.order.ctas)), kAheadWarps * kWarpSize,
                      int(sizeof(AheadSmem)), &copy, {.pdl = true}, stream);
}

}  // namespace fa3::hopper
