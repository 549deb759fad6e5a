// SPDX-License-Identifier: Apache-2.0
// Which GPUs there are, and making one current for the length of a scope. Loads no driver until asked.
#pragma once

#include <cuda_runtime_api.h>

#include <fa3/status.h>

#include "engine/engine.h"

namespace fa3::hopper {

Availability probe();

constexpr int kNoDevice = -1;

// The first device that the kernels can run on, or kNoDevice.
int first_device();

// OK if the kernels can run on this device.
Status check_device(int device);

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

}  // namespace fa3::hopper
