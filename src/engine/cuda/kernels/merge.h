// SPDX-License-Identifier: Apache-2.0
// Merges partial attention over disjoint key sets, in device memory. Any CUDA device would do.
#pragma once

#include <fa3/status.h>

#include "core/problem.h"

namespace fa3::cuda {

Status run_merge(const MergeProblem& problem, void* stream);

}  // namespace fa3::cuda
