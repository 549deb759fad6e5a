// SPDX-License-Identifier: Apache-2.0
// Multiplies of wgmma.cuh with fewer columns than its own.
#pragma once

#include "engine/hopper/ptx/wgmma.cuh"

namespace fa3::hopper::ptx {

#include "engine/hopper/ptx/wgmma_narrow_atoms.inc"

}  // namespace fa3::hopper::ptx
