// SPDX-License-Identifier: Apache-2.0
//
// The engine for GPUs of compute capability 8.0 or later: FlashAttention-2 on mma.sync, ldmatrix
// and cp.async. Reading order: plan/plan_forward.cpp (what runs), launch/launch_forward.cpp (how it
// is queued), forward/forward_kernel.cuh (the kernel).
#pragma once

#include "engine/ampere/capability.h"
#include "engine/engine.h"

namespace fa3::ampere {

extern const Engine kAmpereEngine;

}  // namespace fa3::ampere
