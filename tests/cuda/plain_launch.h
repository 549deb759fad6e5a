// SPDX-License-Identifier: Apache-2.0
// Launches of plain_kernel.cuh.
#pragma once

#include <cuda_runtime_api.h>

#include "engine/hopper/plan/forward_call.h"

namespace fa3::hopper {

// Head dims that the plain kernel is built for, Q's and V's alike.
inline constexpr int kPlainHeadDims[] = {64, 128, 256};

// cudaErrorInvalidValue: it is not built for this head dim, or cannot read the tensors.
cudaError_t launch_plain(int head_dim, Element element, const ForwardCall& launch,
                         cudaStream_t stream);

}  // namespace fa3::hopper
