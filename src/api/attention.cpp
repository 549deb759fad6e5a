// SPDX-License-Identifier: Apache-2.0
#include "api/attention.h"

#include <type_traits>

#include "api/describe/describe.h"
#include "api/describe/describe_append.h"
#include "api/describe/describe_quantize.h"
#include "api/monitor.h"
#include "core/error.h"
#include "core/macros.h"
#include "plan/choose.h"
#include "plan/merge_apart.h"

namespace fa3::api {
namespace {

constexpr uintptr_t kWorkspaceAlignment = 256;

bool writes_nothing(const MergeProblem& p) {
  const bool no_rows = p.batch == 0 || p.rows == 0 || p.heads == 0;
  return no_rows || (p.head_dim_v == 0 && p.lse.data == nullptr);
}

// The memory that the plan needs.
template <class Params>
Status provide(const Params& params, const Plan& plan, Workspace workspace, void** memory) {
  if (plan.workspace_bytes == 0) return {};
  const auto needed = static_cast<uint64_t>(plan.workspace_bytes);
  if (workspace.allocate != nullptr) {
    workspace.data = workspace.allocate(workspace.context, needed);
    if (workspace.data == nullptr) {
      return {StatusCode::out_of_memory,
              concat("workspace: expected ", needed, " bytes from the allocator, got none")};
    }
  } else if (needed > workspace.bytes) {
    return {StatusCode::workspace_too_small,
            concat("workspace: expected at least ", needed, " bytes, got ", workspace.bytes,
                   "; ask the workspace_size function with the same params")};
  }
  if (workspace.data == nullptr) {
    return invalid("workspace: expected ", needed, " bytes, got a null pointer");
  }
  if (reinterpret_cast<uintptr_t>(workspace.data) % kWorkspaceAlignment != 0) {
    return invalid("workspace: expected an address aligned to ", kWorkspaceAlignment,
                   " bytes, got ", workspace.data);
  }
  *memory = workspace.data;
  return check_workspace(params, {workspace.data, plan.workspace_bytes});
}

template <class P, class Params>
Status plan_call(const Params& params, Plan* plan) {
  P problem;
  Choice choice;
  FA3_TRY(describe(params, Purpose::query, &problem));
  choice.plan.wants_words = plan->wants_words;
  FA3_TRY(choose(problem, &choice));
  *plan = std::move(choice.plan);
  return {};
}

// `verb`: the engine's run_*.
template <class P, class Params, class Verb>
Status run_call(const Params& params, Workspace workspace, void* stream, Verb verb) {
  P problem;
  Choice choice;
  FA3_TRY(describe(params, Purpose::call, &problem));
  choice.plan.wants_words = watched();
  FA3_TRY(choose(problem, &choice));
  void* memory = nullptr;
  FA3_TRY(provide(params, choice.plan, workspace, &memory));
  const Engine& engine = *choice.engine;
  return watch(problem, engine, choice.plan.kernel, stream, [&] {
    if constexpr (std::is_same_v<P, Problem>) {
      if (choice.plan.part_offset >= 0) {
        return run_apart(engine, problem, choice.plan, memory, stream);
      }
    }
    return (engine.*verb)(problem, choice.plan, memory, stream);
  });
}

// By the first engine that does it for this device. `verb`: the engine's run_*, which may be null.
template <class P>
Status run_on_first(const P& problem, Status (*Engine::*verb)(const P&, void*), void* stream,
                    const char* none) {
  Status refusal = unsupported(none);
  bool refused = false;
  for (const Engine* engine : engines()) {
    if (engine->memory != problem.device || engine->*verb == nullptr) continue;
    Status status =
        watch(problem, *engine, "", stream, [&] { return (engine->*verb)(problem, stream); });
    if (status.code() != StatusCode::unsupported) return status;
    if (!refused) refusal = std::move(status);  // of the best engine
    refused = true;
  }
  return refusal;
}

}  // namespace

Status plan(const fa3_forward_params& params, Plan* plan) {
  return plan_call<Problem>(params, plan);
}

Status plan(const fa3_backward_params& params, Plan* plan) {
  return plan_call<BackwardProblem>(params, plan);
}

Status plan(const fa3_quantize_params& params, Plan* plan) {
  return plan_call<QuantizeProblem>(params, plan);
}

Status run(const fa3_forward_params& params, Workspace workspace, void* stream) {
  return run_call<Problem>(params, workspace, stream, &Engine::run_forward);
}

Status run(const fa3_backward_params& params, Workspace workspace, void* stream) {
  return run_call<BackwardProblem>(params, workspace, stream, &Engine::run_backward);
}

Status run(const fa3_quantize_params& params, Workspace workspace, void* stream) {
  return run_call<QuantizeProblem>(params, workspace, stream, &Engine::run_quantize);
}

Status run(const fa3_merge_params& params, void* stream) {
  MergeProblem problem;
  FA3_TRY(describe(params, &problem));
  if (writes_nothing(problem)) return {};
  return run_on_first(problem, &Engine::run_merge, stream,
                      "merge: no engine of this build merges partial results in this memory");
}

Status run(const fa3_append_params& params, void* stream) {
  AppendProblem problem;
  FA3_TRY(describe(params, &problem));
  return run_on_first(problem, &Engine::run_append, stream,
                      "append: no engine of this build writes into caches in this memory");
}

}  // namespace fa3::api
