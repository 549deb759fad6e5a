// SPDX-License-Identifier: Apache-2.0
// The kernel of a program, compiled once for all processes of a user: in memory, else on disk, else
// by NVRTC. Next: disk_cache.h, nvrtc.h.
#pragma once

#include "engine/cuda/jit/nvrtc.h"
#include "engine/cuda/jit/program_key.h"

namespace fa3::cuda {

// What cuLaunch and cudaLaunchKernel take, for a program's one kernel. It stays for as long as the
// process runs, and is every device's and context's. Null: none was made with this key.
const void* known_kernel(const ProgramKey& key);

// Makes it, unless another thread just did.
Status make_kernel(const ProgramKey& key, const Program& program, const char* nvrtc,
                   const void** kernel);

// The kernel of the program that write() returns, and that is written where none is known alone.
template <class Write>
Status find_kernel(const ProgramKey& key, const char* nvrtc, const void** kernel,
                   const Write& write) {
  *kernel = known_kernel(key);
  return *kernel != nullptr ? Status{} : make_kernel(key, write(), nvrtc, kernel);
}

// Its machine code alone: what make_kernel() loads. Needs no GPU.
Status find_code(const Program& program, const char* nvrtc, std::string* code);

}  // namespace fa3::cuda
