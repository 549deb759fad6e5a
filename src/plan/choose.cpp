// SPDX-License-Identifier: Apache-2.0
#include "plan/choose.h"

#include <vector>

#include "core/error.h"
#include "core/macros.h"
#include "core/workspace.h"
#include "plan/default_engine.h"
#include "plan/merge_apart.h"
#include "process/first_use.h"

namespace fa3 {
namespace {

constexpr const char* kNoEngine = "no engine can run this call: ";
constexpr const char* kBuildWithCuda = "build fa3 with the CUDA toolkit (nvcc in PATH)";

const char* memory_name(fa3_device_type type) {
  return type == FA3_CPU ? "cpu" : "cuda";
}

Status plan_with(const Engine& engine, const Problem& problem, Plan* plan) {
  if (problem.score != nullptr && !engine.has_score_functions)
    return unsupported("has no score functions");
  const bool merges_apart =
      problem.partial.on && (engine.continues == nullptr || !engine.continues(problem));
  return merges_apart ? plan_apart(engine, problem, plan) : engine.plan_forward(problem, plan);
}

Status plan_with(const Engine& engine, const BackwardProblem& problem, Plan* plan) {
  if (problem.score != nullptr && !engine.has_score_functions)
    return unsupported("has no score functions");
  return engine.plan_backward(problem, plan);
}

Status plan_with(const Engine& engine, const QuantizeProblem& problem, Plan* plan) {
  if (engine.plan_quantize == nullptr) return unsupported("does not quantize");
  return engine.plan_quantize(problem, plan);
}

Status plan_with(const Engine& engine, const MlaProblem& problem, Plan* plan) {
  if (engine.plan_mla == nullptr) {
    return unsupported(
        "no kernel for latent caches (MLA), which engines cpu, hopper and reference have");
  }
  return engine.plan_mla(problem, plan);
}

Status plan_with(const Engine& engine, const MlaBackwardProblem& problem, Plan* plan) {
  if (engine.plan_mla_backward == nullptr) {
    return unsupported("no gradients of latent rows (MLA), which engines cpu and hopper have");
  }
  return engine.plan_mla_backward(problem, plan);
}

// OK, and the choice; or why the engine cannot take the problem.
template <class P>
Status consider(const Engine& engine, const P& problem, Choice* choice) {
  if (engine.memory != problem.device) {
    return unsupported("takes ", memory_name(engine.memory), " tensors, got ",
                       memory_name(problem.device), "; fa3 never moves data");
  }
  Plan plan{.wants_words = choice->plan.wants_words};
  FA3_TRY(plan_with(engine, problem, &plan));
  if (problem.device == FA3_CPU && plan.workspace_bytes > 0) {
    plan.workspace_bytes += WorkspaceAllocator::kAlignment;  // the call aligns what malloc gave
  }
  if (plan.workspace_bytes >= kTooManyBytes) {
    return unsupported("needs a workspace of 2^60 bytes or more for these sizes");
  }
  *choice = {&engine, std::move(plan)};
  return {};
}

struct Refusal {
  const Engine* engine;
  Status status;

  // A missing device is the better reason than `status`, but takes a while to find.
  std::string words(fa3_device_type memory) const {
    const bool may_be_missing = engine->memory == memory;
    const Availability found = may_be_missing ? probe(*engine) : Availability{true, ""};
    return concat(engine->name, ": ", found.available ? status.message() : found.detail);
  }
};

template <class P>
Status choose_engine(const P& problem, Choice* choice) {
  std::vector<Refusal> refusals;
  for (const Engine* engine : engines()) {
    const bool candidate =
        problem.engine == FA3_ENGINE_AUTO ? engine->automatic : engine->id == problem.engine;
    if (!candidate) continue;
    Status status = consider(*engine, problem, choice);
    if (!status.ok()) {
      refusals.push_back({engine, std::move(status)});
      continue;
    }
    for (const Refusal& better : refusals) {
      if (!choice->plan.wants_words || better.engine->memory != problem.device) continue;
      choice->plan.why += "; not " + better.words(problem.device);
      if (probe(*better.engine).available) choice->is_first = false;
    }
    if (choice->plan.wants_words) {
      choice->plan.why += why_not_default_engine(problem.engine, problem.device);
    }
    return {};
  }
  for (const AbsentEngine& absent : absent_engines()) {
    if (absent.id != problem.engine) continue;
    return unsupported(kNoEngine, absent.name, ": not in this build; ", kBuildWithCuda,
                       why_default_engine(problem.engine));
  }
  if (refusals.empty()) {
    return unsupported("no engine of this build has the id ", problem.engine,
                       "; fa3 info lists the engines");
  }
  std::string reasons;
  for (const Refusal& refusal : refusals) {
    reasons += (reasons.empty() ? "" : "; ") + refusal.words(problem.device);
  }
  if (problem.device == FA3_CUDA && !absent_engines().empty()) {
    reasons += concat("; no engine of this build takes them: ", kBuildWithCuda);
  }
  return unsupported(kNoEngine, reasons, why_default_engine(problem.engine));
}

}  // namespace

std::span<const AbsentEngine> absent_engines() {
#ifdef FA3_HAS_CUDA
  return {};
#else
  static constexpr AbsentEngine kAbsent[] = {{"hopper", FA3_ENGINE_HOPPER},
                                             {"ampere", FA3_ENGINE_AMPERE}};
  return kAbsent;
#endif
}

Availability probe(const Engine& engine) {
  const NoFork no_fork;
  return engine.probe();
}

Status choose(const Problem& problem, Choice* choice) {
  return choose_engine(problem, choice);
}

Status choose(const BackwardProblem& problem, Choice* choice) {
  return choose_engine(problem, choice);
}

Status choose(const QuantizeProblem& problem, Choice* choice) {
  return choose_engine(problem, choice);
}

Status choose(const MlaProblem& problem, Choice* choice) {
  return choose_engine(problem, choice);
}

Status choose(const MlaBackwardProblem& problem, Choice* choice) {
  return choose_engine(problem, choice);
}

}  // namespace fa3
