// SPDX-License-Identifier: Apache-2.0
// What a forward problem needs of a kernel (cuda/host/needs.h). Next: kernels/offers.h.
#pragma once

#include "engine/cuda/host/needs.h"
#include "engine/hopper/plan/forward_call.h"

namespace fa3::hopper {

Needs needs_of(const Problem& problem, const ForwardCall& call);

}  // namespace fa3::hopper
