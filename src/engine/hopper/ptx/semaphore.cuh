// SPDX-License-Identifier: Apache-2.0
// Counters by which CTAs take turns: what every GPU has, under this folder's name.
#pragma once

#include "engine/cuda/ptx/semaphore.cuh"

namespace fa3::hopper::ptx {

using cuda::add_release;
using cuda::ld_acquire;

}  // namespace fa3::hopper::ptx
