// SPDX-License-Identifier: Apache-2.0
// Sums in double precision, always in the same order: deterministic without being asked.
#include "engine/cuda/kernels/kernels.h"

namespace fa3::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    sink_gradient_kernel(const __grid_constant__ SinkSums p) {
  __shared__ double of_thread[kThreads];
  const int head = int(blockIdx.x), thread = int(threadIdx.x);
  double sum = 0;
  for (int batch = 0; batch < p.batches; ++batch) {
    const float* const sums = p.sums + (int64_t{batch} * p.heads + head) * p.q_blocks;
    for (int block = thread; block < p.q_blocks; block += kThreads) sum += double(sums[block]);
  }
  of_thread[thread] = sum;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (thread < half) of_thread[thread] += of_thread[thread + half];
  }
  if (thread == 0) p.d_sink[head] = float(-of_thread[0]);
}

}  // namespace

cudaError_t sum_sink_gradients(const SinkSums& sums, cudaStream_t stream) {
  sink_gradient_kernel<<<dim3(unsigned(sums.heads)), kThreads, 0, stream>>>(sums);
  return cudaPeekAtLastError();
}

}  // namespace fa3::cuda
