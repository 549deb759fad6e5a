// SPDX-License-Identifier: Apache-2.0
//
// Quantizing, appending to caches and merging results.
#pragma once

#include <fa3/status.h>

#include "core/append.h"
#include "core/dequantize.h"
#include "core/plan.h"
#include "core/problem.h"

namespace fa3::cpu {

// The quantizer, twice: in blocks on all threads, and from the formulas. Both give the same bits.
Status plan_quantize(const QuantizeProblem& problem, Plan* plan);
Status run_quantize(const QuantizeProblem& problem, const Plan& plan, void* workspace, void*);
Status plan_reference_quantize(const QuantizeProblem& problem, Plan* plan);
Status run_reference_quantize(const QuantizeProblem& problem, const Plan& plan, void* workspace,
                              void*);

// The inverse: what e4m3 numbers stand for.
Status run_dequantize(const DequantizeProblem& problem, void* stream);

// New rows into a cache, rotated on the way.
Status run_append(const AppendProblem& problem, void* stream);

Status run_merge(const MergeProblem& problem, void*);

}  // namespace fa3::cpu
