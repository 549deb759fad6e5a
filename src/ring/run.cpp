// SPDX-License-Identifier: Apache-2.0
#include "ring/run.h"

#include <algorithm>
#include <type_traits>

#include "api/describe/describe.h"
#include "core/error.h"
#include "ring/backward_pass.h"
#include "ring/describe.h"
#include "ring/forward_pass.h"

namespace fa3::ring {
namespace {

constexpr uintptr_t kAlignment = 256;  // of workspaces, and so of what kernels find in them

template <class Params>
struct PassOf;
template <>
struct PassOf<fa3_forward_params> {
  using Type = Forward;
};
template <>
struct PassOf<fa3_backward_params> {
  using Type = Backward;
};

// The largest workspace of the rank's calls.
template <class Pass>
Status plan_calls(const Pass& pass, int64_t* bytes) {
  *bytes = 0;
  for (size_t i = 0; i < pass.steps.stages.size(); ++i) {
    for (const Step& step : pass.steps.of_stage[i]) {
      Plan plan{.wants_words = false};
      if constexpr (std::is_same_v<Pass, Forward>) {
        FA3_TRY(api::plan(pass.call_of(i, step), &plan));
      } else {
        FA3_TRY(api::plan(pass.call_of(i, step, true), &plan));
        const int64_t of_first = plan.workspace_bytes;
        FA3_TRY(api::plan(pass.call_of(i, step, false), &plan));
        plan.workspace_bytes = std::max(plan.workspace_bytes, of_first);
      }
      *bytes = std::max(*bytes, plan.workspace_bytes);
    }
  }
  *bytes = (*bytes + kAlignment - 1) / kAlignment * kAlignment;
  return {};
}

struct Prepared {
  Communicator comm;
  Steps steps;
  int64_t call_bytes = 0;
  int64_t bytes = 0;
};

template <class Params>
Status prepare(const Params& params, const fa3_ring& ring, bool is_call, Prepared* prepared) {
  using Pass = typename PassOf<Params>::Type;
  FA3_TRY(prepared->comm.open(ring));
  Whole whole;
  FA3_TRY(describe(params, ring, prepared->comm, is_call, &whole));
  prepared->steps = steps_of(whole, prepared->comm.rank());
  WorkspaceAllocator nothing;
  FA3_TRY(plan_calls(Pass(params, prepared->steps, 0, nothing), &prepared->call_bytes));
  WorkspaceAllocator count;
  Pass(params, prepared->steps, prepared->call_bytes, count);
  prepared->bytes = count.bytes();
  return {};
}

template <class Params>
Status run_ring(const Params& params, const fa3_ring& ring, api::Workspace workspace,
                void* stream) {
  using Pass = typename PassOf<Params>::Type;
  Prepared prepared;
  FA3_TRY(prepare(params, ring, true, &prepared));
  const auto needed = static_cast<uint64_t>(prepared.bytes);
  if (needed > workspace.bytes) {
    return {StatusCode::workspace_too_small,
            concat("workspace: expected at least ", needed, " bytes, got ", workspace.bytes,
                   "; ask the ring's workspace_size function with the same params")};
  }
  if (needed > 0) {
    if (workspace.data == nullptr) {
      return invalid("workspace: expected ", needed, " bytes, got a null pointer");
    }
    if (reinterpret_cast<uintptr_t>(workspace.data) % kAlignment != 0) {
      return invalid("workspace: expected an address aligned to ", kAlignment, " bytes, got ",
                     workspace.data);
    }
    FA3_TRY(api::check_workspace(params, {workspace.data, prepared.bytes}));
  }
  WorkspaceAllocator memory(workspace.data);
  const Pass pass(params, prepared.steps, prepared.call_bytes, memory);
  const Messages messages(prepared.comm, params.q, stream, ring.comm_stream);
  return run_steps(pass, messages, {pass.memory, size_t(prepared.call_bytes)}, stream);
}

template <class Params>
Status size_of_workspace(const Params& params, const fa3_ring& ring, int64_t* bytes) {
  Prepared prepared;
  FA3_TRY(prepare(params, ring, false, &prepared));
  *bytes = prepared.bytes;
  return {};
}

}  // namespace

Status workspace_size(const fa3_forward_params& params, const fa3_ring& ring, int64_t* bytes) {
  return size_of_workspace(params, ring, bytes);
}
Status workspace_size(const fa3_backward_params& params, const fa3_ring& ring, int64_t* bytes) {
  return size_of_workspace(params, ring, bytes);
}

Status run(const fa3_forward_params& params, const fa3_ring& ring, api::Workspace workspace,
           void* stream) {
  return run_ring(params, ring, workspace, stream);
}
Status run(const fa3_backward_params& params, const fa3_ring& ring, api::Workspace workspace,
           void* stream) {
  return run_ring(params, ring, workspace, stream);
}

}  // namespace fa3::ring
