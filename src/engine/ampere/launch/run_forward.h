// SPDX-License-Identifier: Apache-2.0
// Queues what plan/plan_forward.h has decided.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"

namespace fa3::ampere {

Status run_forward(const Problem& problem, const Plan& plan, void* workspace, void* stream);

}  // namespace fa3::ampere
