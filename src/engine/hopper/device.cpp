// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/device.h"

#include "core/error.h"

namespace fa3::hopper {
namespace {

constexpr int kMajor = 9;  // compute capability 9.0: the kernels are built for sm_90a alone
constexpr int kMinor = 0;

struct Capability {
  int major = 0;
  int minor = 0;
};

cudaError_t capability_of(int device, Capability* capability) {
  const cudaError_t error =
      cudaDeviceGetAttribute(&capability->major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(&capability->minor, cudaDevAttrComputeCapabilityMinor, device);
}

bool fits(Capability found) {
  return found.major == kMajor && found.minor == kMinor;
}

// The last error is this thread's, shared with the caller's own CUDA code: leave none behind.
const char* text_of(cudaError_t error) {
  cudaGetLastError();
  return cudaGetErrorString(error);
}

}  // namespace

Availability probe() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return {false, concat("no usable CUDA driver or GPU: ", text_of(error))};
  }
  const int device = first_device();
  if (device == kNoDevice) {
    return {false, concat("none of ", count, " CUDA devices has compute capability 9.0")};
  }
  return {true, concat("CUDA device ", device, ", compute capability 9.0")};
}

int first_device() {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    return kNoDevice;
  }
  for (int device = 0; device < count; ++device) {
    Capability found;
    if (capability_of(device, &found) == cudaSuccess && fits(found)) return device;
  }
  return kNoDevice;
}

Status check_device(int device) {
  Capability found;
  if (const cudaError_t error = capability_of(device, &found); error != cudaSuccess) {
    return unsupported("cuda:", device, ": ", text_of(error));
  }
  if (!fits(found)) {
    return unsupported("cuda:", device, " has compute capability ", found.major, ".", found.minor,
                       "; the kernels need 9.0");
  }
  return {};
}

DeviceScope::DeviceScope(int device) {
  error_ = cudaGetDevice(&previous_);
  if (error_ != cudaSuccess) return;
  // Also where it is the device already: a thread's first call has no context yet, without which the
  // driver encodes no tensor map.
  error_ = cudaSetDevice(device);
  switched_ = error_ == cudaSuccess && previous_ != device;
}

DeviceScope::~DeviceScope() {
  if (switched_) cudaSetDevice(previous_);
}

}  // namespace fa3::hopper
