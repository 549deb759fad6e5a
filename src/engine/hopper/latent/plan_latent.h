// SPDX-License-Identifier: Apache-2.0
// Attention to a latent cache and its gradients: what runs, and how it is queued.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "engine/hopper/latent/latent_kernel.h"

namespace fa3::hopper {

struct LatentPlan {
  LatentKernel kernel;
  LatentParams params;  // without the problem's pointers and those into the workspace
  int ctas = 0;
  bool combines = false;
};

Status plan_mla(const MlaProblem& problem, Plan* plan);
Status run_mla(const MlaProblem& problem, const Plan& plan, void* workspace, void* stream);

Status plan_mla_backward(const MlaBackwardProblem& problem, Plan* plan);
Status run_mla_backward(const MlaBackwardProblem& problem, const Plan& plan, void* workspace,
                        void* stream);

// Asks no device: `sms` is its number of SMs.
Status plan_latent(const MlaProblem& problem, int sms, LatentPlan* plan);
// Points params' arrays into the workspace; counts its bytes if that is null.
int64_t place_in_workspace(LatentParams& params, void* workspace);

}  // namespace fa3::hopper
