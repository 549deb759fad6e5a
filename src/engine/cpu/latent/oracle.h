// SPDX-License-Identifier: Apache-2.0
//
// Attention to latent caches in double precision, one key after the other: the oracle.
#pragma once

#include <fa3/status.h>

#include "core/latent.h"
#include "core/plan.h"

namespace fa3::cpu {

Status plan_reference_mla(const MlaProblem& problem, Plan* plan);
Status run_reference_mla(const MlaProblem& problem, const Plan& plan, void* workspace,
                         void* stream);

}  // namespace fa3::cpu
