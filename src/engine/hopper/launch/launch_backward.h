// SPDX-License-Identifier: Apache-2.0
// One backward: tensors in, three launches chained so that each starts under the end of the one
// before; in front of them the lists of varlen sequences, behind them the sinks. Sequences that a
// tile holds take one launch. Next: launch_backward.cpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/mask_rule.h"
#include "core/seqlen.h"
#include "engine/cuda/rows.h"
#include "engine/hopper/host/tensor_map.h"
#include "engine/hopper/instances/backward_entry.h"

namespace fa3::hopper {

struct BackwardArguments {
  TensorSpan q, k, v, o, d_o;  // packed sequences are one batch entry
  RowFloats lse;
  RowFloats d_lse;  // data may be null: zero
  TensorSpan dq, dk, dv;
  float scale = 0.0f;
  float gradient_scale = 0.0f;  // of dQ and dK
  float softcap = 0.0f;         // 0: none
  MaskRuleOf<int> mask;
  bool deterministic = false;
  bool batch_invariant = false;
  bool has_sink = false;
  const float* sink = nullptr;  // one for each query head
  float* d_sink = nullptr;      // null: not wanted
  int seqlen_q = 0;             // of the longest sequence
  int seqlen_k = 0;
  bool varlen = false;  // lengths differ; the device reads them, from these:
  int64_t sequences = 0;
  Lengths lengths_q;
  Lengths lengths_k;
  float gradient_scale_of_one_key = 0.0f;  // of sequences that have one
  void* workspace = nullptr;               // backward_workspace_bytes(); 256-byte aligned
};

// Which of the launches a call makes: all of them, but for measurements.
enum BackwardLaunch { kPreprocess = 1, kMain = 2, kPostprocess = 4, kAllLaunches = 7 };

// Whether one launch of short_sequences.cuh does it all: none is longer than a tile.
bool has_short_sequences(const BackwardConfig& config, const BackwardArguments& arguments);

// Into how many shares the query heads of a kv head are split. Few causal key blocks, each with a
// whole group of heads to go through, leave SMs without work at the end, and drift apart: one is at
// its last head where another is at its first. Shares add to dK and dV in any order.
int64_t backward_shares(const BackwardConfig& config, const BackwardArguments& arguments);

int64_t backward_num_tiles(const BackwardConfig& config, const BackwardArguments& arguments);
int64_t backward_num_query_blocks(const BackwardConfig& config, const BackwardArguments& arguments);
int64_t backward_workspace_bytes(const BackwardConfig& config, const BackwardArguments& arguments);

// Queues the launches; allocates nothing, waits for nothing.
cudaError_t launch_backward(const BackwardKernel& kernel, const BackwardArguments& arguments,
                            cudaStream_t stream, int launches = kAllLaunches);

}  // namespace fa3::hopper
