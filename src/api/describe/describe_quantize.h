// SPDX-License-Identifier: Apache-2.0
//
// describe.h for the quantizer.
#pragma once

#include <span>

#include "api/call_tensors.h"
#include "api/describe/describe.h"

namespace fa3::api {

Status describe(const fa3_quantize_params& params, Purpose purpose, QuantizeProblem* problem);
// Likewise for the inverse, whose x is written.
Status describe(const DequantizeParams& params, QuantizeProblem* problem);
// No output of one call shares memory with a tensor of another.
Status check_outputs_together(std::span<const fa3_quantize_params> params);
Status check_outputs_together(std::span<const DequantizeParams> params);
Status check_workspace(std::span<const fa3_quantize_params> params, const Memory& workspace);
Status check_workspace(const fa3_quantize_params& params, const Memory& workspace);

}  // namespace fa3::api
