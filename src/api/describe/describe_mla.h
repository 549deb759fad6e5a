// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fa3/mla.h>

#include "api/describe/describe.h"
#include "core/latent.h"

namespace fa3::api {

Status describe(const fa3_mla_forward_params& params, Purpose purpose, MlaProblem* problem);
Status describe(const fa3_mla_append_params& params, MlaAppendProblem* problem);
Status describe(const fa3_mla_gather_params& params, MlaGatherProblem* problem);
Status check_workspace(const fa3_mla_forward_params& params, const Memory& workspace);
// describe_mla_backward.cpp
Status describe(const fa3_mla_backward_params& params, Purpose purpose,
                MlaBackwardProblem* problem);
Status check_workspace(const fa3_mla_backward_params& params, const Memory& workspace);

}  // namespace fa3::api
