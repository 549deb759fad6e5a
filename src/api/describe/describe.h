// SPDX-License-Identifier: Apache-2.0
//
// Caller's params -> a validated, normalised problem, or the sentence that names the broken rule.
// Every rule about arguments is in describe*.cpp, operand_rules.cpp, quantization_rules.cpp and
// tensor_rules.cpp; nothing below them checks.
#pragma once

#include <fa3/fa3.h>
#include <fa3/status.h>

#include "core/problem.h"

namespace fa3::api {

// query: only shapes, strides and dtypes count; data pointers may be null.
// call: the tensors are about to be used, so data must be there and outputs must not overlap.
enum class Purpose { query, call };

Status describe(const fa3_forward_params& params, Purpose purpose, Problem* problem);
Status describe(const fa3_backward_params& params, Purpose purpose, BackwardProblem* problem);
Status describe(const fa3_merge_params& params, MergeProblem* problem);

// The part of a workspace that a call will use; it may share no byte with the call's tensors.
struct Memory {
  void* data;
  int64_t bytes;
  const char* name = "workspace";  // in errors
};
Status check_workspace(const fa3_forward_params& params, const Memory& workspace);
Status check_workspace(const fa3_backward_params& params, const Memory& workspace);

}  // namespace fa3::api
