// SPDX-License-Identifier: Apache-2.0
//
// Problem -> engine and Plan. Picks among the engines for the tensors' memory; never moves data.
#pragma once

#include <span>

#include "engine/engine.h"

namespace fa3 {

struct Choice {
  const Engine* engine = nullptr;
  Plan plan;
  // No engine that is available and comes before has refused the problem. Known with words alone.
  bool is_first = true;
};

// An engine for GPUs that this build leaves out, as it has no CUDA.
struct AbsentEngine {
  const char* name;
  fa3_engine_id id;
};

std::span<const AbsentEngine> absent_engines();

// Looks for the engine's device. That may load a driver, in the middle of which a forked child
// could not go on: so nobody forks meanwhile.
Availability probe(const Engine& engine);

// OK, or UNSUPPORTED with every candidate's reason. With words if choice->plan.wants_words.
Status choose(const Problem& problem, Choice* choice);
Status choose(const BackwardProblem& problem, Choice* choice);
Status choose(const QuantizeProblem& problem, Choice* choice);
Status choose(const MlaProblem& problem, Choice* choice);
Status choose(const MlaBackwardProblem& problem, Choice* choice);

}  // namespace fa3
