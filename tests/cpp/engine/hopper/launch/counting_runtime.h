// SPDX-License-Identifier: Apache-2.0
//
// A CUDA runtime without a GPU, which a program links in front of the real one: it counts what it
// is asked for, refuses what the real one would, and its machine is what a test says.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

namespace fa3::test {

struct CountingRuntime {
  int launches = 0;            // of kernels
  unsigned thread_blocks = 0;  // of the last one
  int tensor_maps = 0;         // described for TMA
  unsigned box_rows = 0;       // the second dimension of the last map's box
  int memsets = 0;             // queued
  int function_settings = 0;   // cudaFuncSetAttribute
  int device_counts = 0;       // cudaGetDeviceCount
  int device_questions = 0;    // cudaDeviceGetAttribute

  cudaError_t driver = cudaSuccess;         // what questions about devices come to
  int devices = 3;                          // of compute capability 9.0, 8.0, 7.0
  bool all_are_hopper = false;              // all are of 9.0
  int sms = 132;                            // of each
  const void* context = nullptr;            // current: a caller's own, or a device's primary one
  int device = 0;                           // current
  const void* context_of_launch = nullptr;  // of the last one
  bool smem_allowed = true;              // else launches fail until a function's setting is changed
  cudaError_t launch = cudaSuccess;      // what launches come to
  cudaError_t last_error = cudaSuccess;  // of the thread
  size_t free_bytes = size_t{80} << 30;  // of a device's memory
};

extern CountingRuntime g_cuda;

// Called with every launch that gives its settings, and with the kernel's first parameter; may be
// empty.
extern std::function<void(const cudaLaunchConfig_t&, const void*)> g_on_launch;

// The primary context of a device, and one of device 0 that a caller has made.
const void* primary_context(int device);
const void* callers_context();

// A tensor map: what it may read, from the first byte to behind the last one.
struct MappedBytes {
  uintptr_t begin, end;
  bool is_clipped;  // two dimensions have one stride (host/tensor_map.h)
};
extern std::function<void(const MappedBytes&)> g_on_map;

}  // namespace fa3::test
