// SPDX-License-Identifier: Apache-2.0
// New rows into a cache, rotated on the way.
#pragma once

#include <fa3/status.h>

#include "core/append.h"

namespace fa3::cpu {

Status run_append(const AppendProblem& problem, void* stream);

}  // namespace fa3::cpu
