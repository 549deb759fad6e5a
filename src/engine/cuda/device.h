// SPDX-License-Identifier: Apache-2.0
// Which GPUs there are, and making one current for the length of a scope. Loads no driver until
// asked.
#pragma once

#include <cuda_runtime_api.h>

#include <fa3/status.h>

#include "engine/engine.h"

namespace fa3::cuda {

// What an engine's kernels are built for.
struct Capability {
  int major = 0;
  int minor = 0;

  bool operator==(const Capability&) const = default;
};

// Whether some device has this capability, in a sentence.
Availability probe(Capability needed);

constexpr int kNoDevice = -1;

// The first device of this capability, or kNoDevice.
int first_device(Capability needed);

// OK if this device has the capability.
Status check_device(int device, Capability needed);

Status count_sms(int device, int* count);

// How a call on the device ended, after `what` has queued its work. The last error is this
// thread's, shared with the caller's own CUDA code: none is left behind.
Status finish(cudaError_t error, const char* what);

// Copies device memory to the host behind what the stream has queued, and waits for it.
Status read_back(void* to, const void* from, int64_t bytes, int device, void* stream);

class DeviceScope {
 public:
  explicit DeviceScope(int device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  cudaError_t error() const { return error_; }

 private:
  int previous_ = 0;
  bool switched_ = false;
  cudaError_t error_ = cudaSuccess;
};

}  // namespace fa3::cuda
