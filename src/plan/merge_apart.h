// SPDX-License-Identifier: Apache-2.0
//
// Going on from a partial result, for engines that cannot do it in one pass: the call's own result
// goes to the workspace, in float32, and a merge makes one of both.
#pragma once

#include "engine/engine.h"

namespace fa3 {

// The engine's plan of the call's own result, with room for that behind its own workspace.
Status plan_apart(const Engine& engine, const Problem& problem, Plan* plan);

// What such a plan says.
Status run_apart(const Engine& engine, const Problem& problem, const Plan& plan, void* workspace,
                 void* stream);

}  // namespace fa3
