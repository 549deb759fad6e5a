// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, with numbers.
#pragma once

#include "engine/cuda/ptx/unpack.cuh"

namespace fa3::hopper::ptx {

using cuda::unpack_pair;

}  // namespace fa3::hopper::ptx
