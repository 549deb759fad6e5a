// SPDX-License-Identifier: Apache-2.0
// The kernel of a program, compiled once for all processes of a user: in memory, else on disk, else
// by NVRTC. Next: disk_cache.h, nvrtc.h.
#pragma once

#include "engine/cuda/jit/nvrtc.h"

namespace fa3::cuda {

// What cuLaunch and cudaLaunchKernel take, for the program's one kernel. It stays for as long as
// the process runs, and is every device's and context's.
Status find_kernel(const Program& program, const char* nvrtc, const void** kernel);

// Its machine code alone: what find_kernel() loads. Needs no GPU.
Status find_code(const Program& program, const char* nvrtc, std::string* code);

}  // namespace fa3::cuda
