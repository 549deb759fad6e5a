// SPDX-License-Identifier: Apache-2.0
// The quantizer in device memory: the same bits as on the CPU. Any CUDA device that converts to
// e4m3 would do.
#pragma once

#include <fa3/status.h>

#include "core/plan.h"
#include "core/problem.h"

namespace fa3::cuda {

Status plan_quantize(const QuantizeProblem& problem, Plan* plan);
Status run_quantize(const QuantizeProblem& problem, const Plan& plan, void* workspace,
                    void* stream);

}  // namespace fa3::cuda
