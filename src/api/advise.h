// SPDX-License-Identifier: Apache-2.0
//
// Whether FP8 pays: what fa3_forward_advise() says. Measurements: precision_table.h.
#pragma once

#include <fa3/fp8.h>
#include <fa3/status.h>

namespace fa3::api {

Status advise(const fa3_forward_params& params, fa3_advice* advice);

}  // namespace fa3::api
