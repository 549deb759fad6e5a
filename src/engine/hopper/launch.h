// SPDX-License-Identifier: Apache-2.0
// What the launchers of both passes compute with.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "engine/cuda/rows.h"
#include "engine/hopper/tensor_map.h"

namespace fa3::hopper {

constexpr int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// The same tensor for code that reaches it without the copy engine.
inline cuda::RowTensor row_tensor(const TensorSpan& t) {
  return {t.data, {t.batch_stride, t.head_stride, t.row_stride}, int(t.columns)};
}

// Queues a kernel with one parameter, if there are thread blocks. `chained`: it may start before the launch in front of it has
// ended, and waits for that one itself (ptx/grid.cuh).
inline cudaError_t launch(const void* function, dim3 grid, int threads, int smem_bytes,
                          void* params, bool chained, cudaStream_t stream) {
  if (grid.x == 0) return cudaSuccess;
  cudaLaunchAttribute chain{};
  chain.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  chain.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(unsigned(threads));
  config.dynamicSmemBytes = size_t(smem_bytes);
  config.stream = stream;
  config.attrs = &chain;
  config.numAttrs = chained ? 1 : 0;
  void* arguments[] = {params};
  return cudaLaunchKernelExC(&config, function, arguments);
}

}  // namespace fa3::hopper
