// SPDX-License-Identifier: Apache-2.0
// The GPUs that these kernels run on.
#pragma once

#include "engine/cuda/host/device.h"

namespace fa3::hopper {

// The kernels are built for sm_90a alone.
inline constexpr cuda::Capability kCapability{9, 0};

}  // namespace fa3::hopper
