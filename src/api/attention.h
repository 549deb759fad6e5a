// SPDX-License-Identifier: Apache-2.0
//
// The library's verbs on the C++ side of the ABI: describe -> choose -> run. abi.cpp wraps them.
#pragma once

#include <fa3/fa3.h>
#include <fa3/status.h>

#include "core/plan.h"

namespace fa3::api {

Status plan(const fa3_forward_params& params, Plan* plan);
Status plan(const fa3_backward_params& params, Plan* plan);

struct Workspace {
  void* data;
  size_t bytes;
};

Status run(const fa3_forward_params& params, Workspace workspace, void* stream);
Status run(const fa3_backward_params& params, Workspace workspace, void* stream);
Status run(const fa3_merge_params& params, void* stream);

}  // namespace fa3::api
