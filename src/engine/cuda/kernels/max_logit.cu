// SPDX-License-Identifier: Apache-2.0
// -inf where a forward kernel raises the largest scores.
#include "engine/cuda/host/launch.h"
#include "engine/cuda/kernels/kernels.h"
#include "engine/cuda/softmax/constants.h"

namespace fa3::cuda {
namespace {

constexpr int kThreads = 256;

struct ClearParams {
  MaxLogitParams to;
  int64_t numbers;
  int heads;
};

__global__ void __launch_bounds__(kThreads) clear_kernel(const __grid_constant__ ClearParams p) {
  const int64_t number = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (number >= p.numbers) return;
  *p.to.at(int(number / p.heads), int(number % p.heads)) = -kInfinity;
}

}  // namespace

cudaError_t clear_max_logits(const MaxLogitParams& to, int64_t sequences, int heads,
                             cudaStream_t stream) {
  ClearParams params{to, sequences * heads, heads};
  const unsigned ctas = unsigned((params.numbers + kThreads - 1) / kThreads);
  return launch(reinterpret_cast<const void*>(&clear_kernel), ctas, kThreads, 0, &params, {},
                stream);
}

}  // namespace fa3::cuda
