// SPDX-License-Identifier: Apache-2.0
//
// The engine for GPUs of compute capability 9.0 (H100, H200). Reading order: plan/plan_forward.cpp
// (what runs), launch/launch_forward.cpp (how it is queued), forward/forward_kernel.cuh (the
// kernel's table of contents). A first kernel to read: tutorial/plain_kernel.cuh.
#pragma once

#include "engine/engine.h"
#include "engine/hopper/host/capability.h"

namespace fa3::hopper {

extern const Engine kHopperEngine;

}  // namespace fa3::hopper
