// SPDX-License-Identifier: Apache-2.0
#include "api/attention.h"

#include "api/describe.h"
#include "core/error.h"
#include "core/macros.h"
#include "plan/choose.h"

namespace fa3::api {
namespace {

constexpr uintptr_t kWorkspaceAlignment = 256;

Status check_workspace(const Plan& plan, Workspace workspace) {
  if (static_cast<uint64_t>(plan.workspace_bytes) > workspace.bytes) {
    return {StatusCode::workspace_too_small,
            concat("workspace: expected at least ", plan.workspace_bytes, " bytes, got ",
                   workspace.bytes, "; ask the workspace_size function with the same params")};
  }
  if (plan.workspace_bytes == 0) return {};
  if (workspace.data == nullptr) {
    return invalid("workspace: expected ", plan.workspace_bytes, " bytes, got a null pointer");
  }
  if (reinterpret_cast<uintptr_t>(workspace.data) % kWorkspaceAlignment != 0) {
    return invalid("workspace: expected an address aligned to ", kWorkspaceAlignment,
                   " bytes, got ", workspace.data);
  }
  return {};
}

}  // namespace

Status plan(const fa3_forward_params& params, Plan* plan) {
  Problem problem;
  Choice choice;
  FA3_TRY(describe(params, Purpose::query, &problem));
  FA3_TRY(choose(problem, &choice));
  *plan = std::move(choice.plan);
  return {};
}

Status plan(const fa3_backward_params& params, Plan* plan) {
  BackwardProblem problem;
  Choice choice;
  FA3_TRY(describe(params, Purpose::query, &problem));
  FA3_TRY(choose(problem, &choice));
  *plan = std::move(choice.plan);
  return {};
}

Status run(const fa3_forward_params& params, Workspace workspace, void* stream) {
  Problem problem;
  Choice choice;
  FA3_TRY(describe(params, Purpose::call, &problem));
  FA3_TRY(choose(problem, &choice));
  FA3_TRY(check_workspace(choice.plan, workspace));
  return choice.engine->run_forward(problem, choice.plan, workspace.data, stream);
}

Status run(const fa3_backward_params& params, Workspace workspace, void* stream) {
  BackwardProblem problem;
  Choice choice;
  FA3_TRY(describe(params, Purpose::call, &problem));
  FA3_TRY(choose(problem, &choice));
  FA3_TRY(check_workspace(choice.plan, workspace));
  return choice.engine->run_backward(problem, choice.plan, workspace.data, stream);
}

Status run(const fa3_merge_params& params, void* stream) {
  MergeProblem problem;
  FA3_TRY(describe(params, &problem));
  for (const Engine* engine : engines()) {
    if (engine->memory == problem.device && engine->run_merge != nullptr) {
      return engine->run_merge(problem, stream);
    }
  }
  return unsupported("merge: no engine of this build merges partial results in this memory");
}

}  // namespace fa3::api
