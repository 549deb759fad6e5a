// SPDX-License-Identifier: Apache-2.0
// One forward launch: tensors and lengths in, tensor maps and a grid out. Next: launch_forward.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "engine/hopper/forward_entry.h"
#include "engine/hopper/tensor_map.h"

namespace fa3::hopper {

struct ForwardArguments {
  TensorSpan q;
  TensorSpan k;
  TensorSpan v;
  TensorSpan o;
  float* lse = nullptr;  // (batch, head, row); optional
  int64_t lse_batch_stride = 0;
  int64_t lse_head_stride = 0;
  int64_t lse_row_stride = 1;
  float scale = 0.0f;
  bool causal = false;
  int seqlen_k = 0;  // may be 0, where k and v stand for nothing
  int heads_per_kv_head = 1;
  void* workspace = nullptr;  // forward_workspace_bytes(); 16-byte aligned
};

// How many query heads of a group (2 to that power) share a tile, as rows beside each other: they
// read the same keys.
int forward_pack_log2(const ForwardConfig& config, const ForwardArguments& arguments);
int64_t forward_num_tiles(const ForwardConfig& config, const ForwardArguments& arguments);
int64_t forward_workspace_bytes(int64_t num_tiles);

// Queues the launch; allocates nothing, waits for nothing.
cudaError_t launch_forward(const ForwardKernel& kernel, const ForwardArguments& arguments,
                           cudaStream_t stream);

}  // namespace fa3::hopper
