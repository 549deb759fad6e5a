// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fa3/status.h>

#include "core/problem.h"

namespace fa3::cpu {

Status run_merge(const MergeProblem& problem, void*);

}  // namespace fa3::cpu
