// SPDX-License-Identifier: Apache-2.0
//
// The library's verbs on the C++ side of the ABI: describe -> choose -> run. abi.cpp wraps them.
#pragma once

#include <fa3/fa3.h>
#include <fa3/mla.h>
#include <fa3/status.h>

#include <span>

#include "api/call_tensors.h"
#include "core/plan.h"

namespace fa3::api {

// Params: those of a call that is planned, in attention.cpp's CallOf.
template <class Params>
Status plan(const Params& params, Plan* plan);

// What fa3_*_query() and fa3_*_block_lists_size() say, of both passes of attention.
template <class Params>
Status query(const Params& params, fa3_answer* answer);
template <class Params>
Status block_lists_size(const Params& params, size_t* bytes);

Status validate(const fa3_forward_params& params, void* stream);

// The caller's: given with the call, or lent by its allocator when the plan is made.
struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;
  fa3_workspace_allocator allocate = nullptr;
  void* context = nullptr;
};

template <class Params>
Status run(const Params& params, Workspace workspace, void* stream);
// As fa3_quantize_together_with_allocator() says.
Status run(std::span<const fa3_quantize_params> params, Workspace workspace, void* stream);
// As fa3_dequantize_together() says.
Status run(std::span<const DequantizeParams> params, void* stream);
// Params of attention with a map of blocks; the workspace is the lists' memory.
template <class Params>
Status make_block_lists(const Params& params, Workspace memory, void* stream,
                        fa3_block_lists* lists);
Status run(const fa3_merge_params& params, void* stream);
Status run(const fa3_append_params& params, void* stream);
Status run(const fa3_mla_append_params& params, void* stream);
Status run(const fa3_mla_gather_params& params, void* stream);

}  // namespace fa3::api
