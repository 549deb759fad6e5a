// SPDX-License-Identifier: Apache-2.0
// plan_forward.h for e4m3 queries, keys and values.
#pragma once

#include "engine/hopper/fp8/transpose_order.h"
#include "engine/hopper/plan/forward_plan.h"
#include "engine/hopper/plan/request.h"

namespace fa3::hopper {

// The kernel's plan, and the kernels around it: V is transposed into the workspace, beforehand or
// ahead of the kernel's tiles, or scales alone are prepared, where V is given transposed or the
// kernel itself transposes it; what K's mean owes to the LSE is added behind.
struct E4m3Plan {
  ForwardPlan forward;  // its V is the one that it reads, its workspace a part of this one's
  TensorSpan v;         // V as it is given
  bool v_is_transposed = false;  // V as it is given is what the kernel reads
  Quantization q_quantization, k_quantization, v_quantization;
  int sequences = 0;    // that are prepared: at least one
  int padded_keys = 0;  // of the longest sequence, a multiple of key_step
  int key_step = 0;
  TransposeOrder order{};      // where some heads are transposed late, beside the kernel
  int parts_done_of_head = 0;  // what their counters then show (HeadsInWork)
  // Where the arrays of the workspace begin:
  int64_t transposed = 0, key_scales = 0, value_scales = 0, parts_done = 0, forward_workspace = 0;
  int64_t workspace_bytes = 0;

  bool transposes_in_kernel() const { return forward.kernel.config.transposes_v(); }
  bool transposes_before() const { return !v_is_transposed && !transposes_in_kernel(); }
};

// Refuses what no e4m3 kernel could change: means beside what takes none, too many sequences or
// heads.
Status check_e4m3_tensors(const Problem& problem);

// Refuses addresses and strides that the kernels cannot load.
Status check_e4m3_layouts(const Request& r);

// The plan of a call for a kernel and a tiling that it can do.
E4m3Plan plan_e4m3_launch(const ForwardKernel& kernel, const Request& request, Tiling tiling);

// A part of a plan's reasons: who transposes V, and when.
const char* words_of_values(const E4m3Plan& plan);

}  // namespace fa3::hopper
