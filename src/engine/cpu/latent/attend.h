// SPDX-License-Identifier: Apache-2.0
//
// Attention to latent caches by the tiled forward. A task has some queries of one sequence (with
// selected keys: one), reads a block of their keys as floats at a time, and attends to it as to
// the keys of a small problem of one key head; each part of the keys goes on from the result
// before.
#pragma once

#include <fa3/status.h>

#include "core/latent.h"
#include "core/plan.h"

namespace fa3::cpu {

Status plan_mla(const MlaProblem& problem, Plan* plan);
Status run_mla(const MlaProblem& problem, const Plan& plan, void* workspace, void* stream);

}  // namespace fa3::cpu
