// SPDX-License-Identifier: Apache-2.0
//
// describe.h for the quantizer.
#pragma once

#include "api/describe/describe.h"

namespace fa3::api {

Status describe(const fa3_quantize_params& params, Purpose purpose, QuantizeProblem* problem);
Status check_workspace(const fa3_quantize_params& params, const Memory& workspace);

}  // namespace fa3::api
