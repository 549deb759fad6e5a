// SPDX-License-Identifier: Apache-2.0
//
// The backward of one rank: calls add to gradients, and those of keys go round.
#pragma once

#include <fa3/fa3.h>

#include "api/attention.h"
#include "ring/buffers.h"

namespace fa3::ring {

struct Backward {
  const fa3_backward_params& p;
  const Steps& steps;
  Arrivals arrivals;
  KeysAndValues sums[2];  // gradients of a rank's keys, which go round
  fa3_tensor d_lse{};
  bool has_zeros = false;  // d_lse is the workspace's
  void* memory = nullptr;
  int32_t* lengths = nullptr;

  Backward(const fa3_backward_params& params, const Steps& of, int64_t call_bytes,
           WorkspaceAllocator& workspace);

  // The gradients of the keys of stage `index`: in the caller's memory where nobody else adds to
  // them.
  KeysAndValues sums_of_stage(size_t index) const;

  bool writes_all_keys(size_t index) const;

  fa3_backward_params call_of(size_t index, const Step& step, bool first) const;
};

Status run_steps(const Backward& b, const Messages& messages, api::Workspace calls, void* stream);

}  // namespace fa3::ring
