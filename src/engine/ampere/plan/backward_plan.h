// SPDX-License-Identifier: Apache-2.0
// What a backward call does on the GPU, decided in full: launch/ encodes it and queues it. Nothing
// here changes once it is made. Next: plan_backward.cpp (who chooses the kernel),
// launch_backward.cpp.
#pragma once

#include "engine/ampere/instances/backward_entry.h"
#include "engine/cuda/host/backward_call.h"
#include "engine/cuda/host/workspace_arrays.h"

namespace fa3::ampere {

// Where the arrays of a workspace begin, in bytes from its own beginning.
struct BackwardWorkspace {
  int64_t dq_accum = cuda::kNoArray;
  int64_t lse_log2 = cuda::kNoArray;
  int64_t delta = cuda::kNoArray;
  int64_t dq_semaphore = cuda::kNoArray;  // deterministic calls
  int64_t sink_sums = cuda::kNoArray;     // calls with sinks
  int64_t d_a = cuda::kNoArray;           // calls with a gate: (batches, rows, heads, columns of V)
  int64_t bytes = 0;
};

// CTAs of each launch; 0: it is not queued.
struct BackwardGrids {
  int64_t preprocess = 0;
  int64_t main = 0;
  int64_t postprocess = 0;

  int64_t largest() const {
    const int64_t rows = preprocess > postprocess ? preprocess : postprocess;
    return rows > main ? rows : main;
  }
};

struct BackwardPlan {
  BackwardKernel kernel;
  cuda::BackwardCall call;
  // Blocks of rows of the longest sequence: of preprocess, of the main kernel's keys, of
  // postprocess.
  int64_t preprocess_blocks = 0;
  int64_t key_blocks = 0;
  int64_t query_blocks = 0;
  int64_t scratch_blocks = 0;   // query blocks of a head in a batch entry of the scratch
  int64_t scratch_batches = 0;  // packed queries are one
  BackwardGrids grids;          // all 0: there is nothing to do
  BackwardWorkspace workspace;
};

// The row of kBackward for a problem and a device's shared memory; or null.
const BackwardRow* select_backward_kernel(const BackwardProblem& problem, int smem_bytes);

// The plan of a call for a kernel that can do it.
BackwardPlan plan_launches(const BackwardKernel& kernel, const cuda::BackwardCall& call);

}  // namespace fa3::ampere
