// SPDX-License-Identifier: Apache-2.0
// One forward launch: tensors and lengths in, tensor maps and a grid out. Next: launch_forward.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "engine/hopper/forward_config.h"
#include "engine/hopper/tensor_map.h"

namespace fa3::hopper {

// A kernel that was built, as the launcher sees it.
struct ForwardKernel {
  ForwardConfig config;
  const void* function;
  int smem_bytes;
};

struct ForwardArguments {
  TensorSpan q;
  TensorSpan k;
  TensorSpan v;
  TensorSpan o;
  float* lse = nullptr;  // (batch, head, row), contiguous; optional
  float scale = 0.0f;
  bool causal = false;
  void* workspace = nullptr;  // forward_workspace_bytes(), 16-byte aligned
};

size_t forward_workspace_bytes(const ForwardConfig& config, const ForwardArguments& arguments);

// Queues the launch; allocates nothing, waits for nothing.
cudaError_t launch_forward(const ForwardKernel& kernel, const ForwardArguments& arguments,
                           cudaStream_t stream);

}  // namespace fa3::hopper
