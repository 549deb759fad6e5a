// SPDX-License-Identifier: Apache-2.0
//
// The engine for GPUs of compute capability 8.0 or later: FlashAttention-2 on mma.sync, ldmatrix
// and cp.async. Reading order: plan/plan_forward.cpp (what runs), launch/launch_forward.cpp (how it
// is queued), forward/forward_kernel.cuh (the kernel).
#pragma once

#include "engine/cuda/host/device.h"
#include "engine/engine.h"

namespace fa3::ampere {

extern const Engine kAmpereEngine;

// The GPUs that the kernels run on. Machine code for sm_80 runs on all of 8.x; the driver compiles
// its PTX for what came later.
inline constexpr cuda::Capability kCapability{8, 0, true};

}  // namespace fa3::ampere
