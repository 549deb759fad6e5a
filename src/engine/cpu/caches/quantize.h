// SPDX-License-Identifier: Apache-2.0
//
// The quantizer, twice: in blocks on all threads, and from the formulas. Both give the same bits.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"

namespace fa3::cpu {

Status plan_quantize(const QuantizeProblem& problem, Plan* plan);
Status run_quantize(const QuantizeProblem& problem, const Plan& plan, void* workspace, void*);

Status plan_reference_quantize(const QuantizeProblem& problem, Plan* plan);
Status run_reference_quantize(const QuantizeProblem& problem, const Plan& plan, void* workspace,
                              void*);

}  // namespace fa3::cpu
