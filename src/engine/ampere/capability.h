// SPDX-License-Identifier: Apache-2.0
// The GPUs that these kernels run on.
#pragma once

#include "engine/cuda/host/device.h"

namespace fa3::ampere {

// Machine code for sm_80 runs on all of 8.x; the driver compiles its PTX for what came later.
inline constexpr cuda::Capability kCapability{8, 0, true};

}  // namespace fa3::ampere
