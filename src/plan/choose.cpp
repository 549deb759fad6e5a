// SPDX-License-Identifier: Apache-2.0
#include "plan/choose.h"

#include "core/error.h"
#include "process/first_use.h"

namespace fa3 {
namespace {

const char* memory_name(fa3_device_type type) {
  return type == FA3_CPU ? "cpu" : "cuda";
}

Status plan_with(const Engine& engine, const Problem& problem, Plan* plan) {
  return engine.plan_forward(problem, plan);
}

Status plan_with(const Engine& engine, const BackwardProblem& problem, Plan* plan) {
  return engine.plan_backward(problem, plan);
}

Status plan_with(const Engine& engine, const QuantizeProblem& problem, Plan* plan) {
  if (engine.plan_quantize == nullptr) return unsupported("does not quantize");
  return engine.plan_quantize(problem, plan);
}

// Why this engine cannot take the problem; OK fills in the choice.
template <class P>
Status consider(const Engine& engine, const P& problem, Choice* choice) {
  if (engine.memory != problem.device) {
    return unsupported("takes ", memory_name(engine.memory), " tensors, got ",
                       memory_name(problem.device), "; fa3 never moves data");
  }
  Plan plan{.wants_words = choice->plan.wants_words};
  if (Status status = plan_with(engine, problem, &plan); !status.ok()) {
    const Availability found = probe(engine);  // the better reason, which takes a while to find
    return found.available ? status : unsupported(found.detail);
  }
  if (plan.workspace_bytes >= kTooManyBytes) {
    return unsupported("needs a workspace of 2^60 bytes or more for these sizes");
  }
  *choice = {&engine, std::move(plan)};
  return {};
}

template <class P>
Status choose_engine(const P& problem, Choice* choice) {
  std::string reasons;
  for (const Engine* engine : engines()) {
    const bool candidate =
        problem.engine == FA3_ENGINE_AUTO ? engine->automatic : engine->id == problem.engine;
    if (!candidate) continue;
    const Status status = consider(*engine, problem, choice);
    if (status.ok()) return {};
    reasons += concat(reasons.empty() ? "" : "; ", engine->name, ": ", status.message());
  }
  if (reasons.empty()) {
    return unsupported("no engine of this build has the id ", problem.engine,
                       "; fa3 info lists the engines");
  }
  return unsupported("no engine can run this call: ", reasons);
}

}  // namespace

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

}  // namespace fa3
