// SPDX-License-Identifier: Apache-2.0
//
// A forward call whose V is a view of latent K, as MLA decodes from a 16-bit cache: planned and
// run by the latent kernels. Next: latent/plan_latent.h.
#pragma once

#include <fa3/status.h>

#include "core/latent.h"
#include "core/plan.h"
#include "core/problem.h"

namespace fa3::hopper {

// Whether the head dims are those of latent rows, which the other forward kernels do not reach.
bool has_latent_dims(const Problem& problem);
// Writes the call for the latent kernels; UNSUPPORTED with what these lack.
Status latent_view(const Problem& problem, MlaProblem* latent);

// Latent kernels for latent dims, else plan_forward() and run_forward().
Status plan_any_forward(const Problem& problem, Plan* plan);
Status run_any_forward(const Problem& problem, const Plan& plan, void* workspace, void* stream);

}  // namespace fa3::hopper
