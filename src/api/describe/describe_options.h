// SPDX-License-Identifier: Apache-2.0
// The options that are numbers, and the score function: into the Problem.
#pragma once

#include <fa3/fa3.h>
#include <fa3/status.h>

#include "core/problem.h"

namespace fa3::api {

Status describe_options(const fa3_options& options, int64_t head_dim, int32_t device_type,
                        Problem* problem);

}  // namespace fa3::api
