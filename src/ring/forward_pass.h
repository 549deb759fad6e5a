// SPDX-License-Identifier: Apache-2.0
//
// The forward of one rank: a call goes on from the partial result of those before it.
#pragma once

#include <fa3/fa3.h>

#include "api/attention.h"
#include "ring/buffers.h"

namespace fa3::ring {

struct Forward {
  const fa3_forward_params& p;
  const Steps& steps;
  Arrivals arrivals;
  fa3_tensor wide{};  // the output in float32
  fa3_tensor lse{};
  void* memory = nullptr;  // of calls, first in the workspace
  int32_t* lengths = nullptr;

  Forward(const fa3_forward_params& params, const Steps& of, int64_t call_bytes,
          WorkspaceAllocator& workspace);

  fa3_forward_params call_of(size_t stage, const Step& step) const;

  // The merge of one partial result rounds it.
  fa3_merge_params rounding_of(const Range& rows) const;
};

Status run_steps(const Forward& f, const Messages& messages, api::Workspace calls, void* stream);

}  // namespace fa3::ring
