// SPDX-License-Identifier: Apache-2.0
//
// The engine for GPUs of compute capability 9.0 (H100, H200). Reading order: plan_forward.cpp (what
// runs), launch_forward.cpp (how it is launched), forward_kernel.cuh (the kernel's table of contents).
#pragma once

#include "engine/cuda/device.h"
#include "engine/engine.h"

namespace fa3::hopper {

// The kernels are built for sm_90a alone.
inline constexpr cuda::Capability kCapability{9, 0};

extern const Engine kHopperEngine;

}  // namespace fa3::hopper
