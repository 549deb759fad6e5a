// SPDX-License-Identifier: Apache-2.0
//
// Attention to latent caches, and gradients of attention to selected rows of one.
#pragma once

#include <fa3/status.h>

#include "core/latent.h"
#include "core/plan.h"

namespace fa3::cpu {

// By the tiled forward. A task has some queries of one sequence (with selected keys: one), reads a
// block of their keys as floats at a time, and attends to it as to the keys of a small problem of
// one key head; each part of the keys goes on from the result before.
Status plan_mla(const MlaProblem& problem, Plan* plan);
Status run_mla(const MlaProblem& problem, const Plan& plan, void* workspace, void* stream);

// By the tiled backward (tiled/backward.cpp). Bitwise repeatable, whatever the number of threads.
Status plan_mla_backward(const MlaBackwardProblem& problem, Plan* plan);
Status run_mla_backward(const MlaBackwardProblem& problem, const Plan& plan, void* workspace,
                        void* stream);

// In double precision, one key after the other: the oracle.
Status plan_reference_mla(const MlaProblem& problem, Plan* plan);
Status run_reference_mla(const MlaProblem& problem, const Plan& plan, void* workspace,
                         void* stream);

}  // namespace fa3::cpu
