// SPDX-License-Identifier: Apache-2.0
// The program of a kernel with a gate or the largest score (cuda/softmax/outputs.h): one of the
// catalogue's, compiled at run time with these.
#pragma once

#include "engine/cuda/jit/nvrtc.h"
#include "engine/cuda/jit/program_key.h"
#include "engine/hopper/config/kernel.h"

namespace fa3::hopper {

cuda::Program output_program(const Kernel& config);

// The numbers that the program follows from.
cuda::ProgramKey output_key(const Kernel& config);

}  // namespace fa3::hopper
