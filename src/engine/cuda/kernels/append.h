// SPDX-License-Identifier: Apache-2.0
// Appends to caches in device memory. Any CUDA device would do.
#pragma once

#include <fa3/status.h>

#include "core/append.h"

namespace fa3::cuda {

Status run_append(const AppendProblem& problem, void* stream);

}  // namespace fa3::cuda
