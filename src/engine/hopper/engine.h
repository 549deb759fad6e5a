// SPDX-License-Identifier: Apache-2.0
//
// The engine for GPUs of compute capability 9.0 (H100, H200). Reading order: plan/plan_forward.cpp
// (what runs), launch/launch_forward.cpp (how it is queued), forward/forward_kernel.cuh (the
// kernel's table of contents). A first kernel to read: tutorial/plain_kernel.cuh.
#pragma once

#include "engine/cuda/host/device.h"
#include "engine/engine.h"

namespace fa3::hopper {

extern const Engine kHopperEngine;

// The GPUs that the kernels run on: they are built for sm_90a alone.
inline constexpr cuda::Capability kCapability{9, 0};

}  // namespace fa3::hopper
