// SPDX-License-Identifier: Apache-2.0
// One forward launch of e4m3 operands: V transposed into the workspace, and then
// launch_forward.h's.
#pragma once

#include "engine/hopper/launch/launch_forward.h"

namespace fa3::hopper {

// ForwardLaunch's v is V as it is given; `e4m3` is filled here.
struct E4m3Launch {
  ForwardLaunch forward;
  Quantization q, k, v;
};

// As choose_pack(); heads that share a tile must share their scales.
PackGqa choose_e4m3_pack(const ForwardConfig& config, const E4m3Launch& launch);

int64_t e4m3_workspace_bytes(const ForwardConfig& config, const E4m3Launch& launch);

// In two steps, so that a benchmark can time them one by one.
cudaError_t prepare_e4m3_launch(const ForwardKernel& kernel, E4m3Launch* launch,
                                cudaStream_t stream);
cudaError_t launch_prepared_e4m3(const ForwardKernel& kernel, const E4m3Launch& launch,
                                 cudaStream_t stream);

}  // namespace fa3::hopper
