// SPDX-License-Identifier: Apache-2.0
// The rules of fa3_append_params.
#pragma once

#include <fa3/fa3.h>
#include <fa3/status.h>

#include "core/append.h"

namespace fa3::api {

Status describe(const fa3_append_params& params, AppendProblem* problem);

}  // namespace fa3::api
