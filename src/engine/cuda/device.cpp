// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/device.h"

#include "core/error.h"

namespace fa3::cuda {
namespace {

cudaError_t capability_of(int device, Capability* capability) {
  const cudaError_t error =
      cudaDeviceGetAttribute(&capability->major, cudaDevAttrComputeCapabilityMajor, device);
  if (error != cudaSuccess) return error;
  return cudaDeviceGetAttribute(&capability->minor, cudaDevAttrComputeCapabilityMinor, device);
}

// In plain words where the runtime's own mislead: it calls a missing driver an insufficient one.
// The last error is this thread's, shared with the caller's own CUDA code: leave none behind.
std::string text_of(cudaError_t error) {
  cudaGetLastError();
  if (error == cudaErrorNoDevice) return "no NVIDIA GPU";
  if (error != cudaErrorInsufficientDriver) return cudaGetErrorString(error);
  int version = 0;  // 1000 major + 10 minor; 0 without a driver
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) return "no NVIDIA driver";
  return concat("the NVIDIA driver is for CUDA ", version / 1000, ".", version / 10 % 100,
                ", expected one for ", CUDART_VERSION / 1000, ".0 or later; update it");
}

}  // namespace

Availability probe(Capability needed) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return {false, text_of(error)};
  }
  const std::string capability = concat("compute capability ", needed.major, ".", needed.minor);
  const int device = first_device(needed);
  if (device == kNoDevice)
    return {false, concat("none of ", count, " CUDA devices has ", capability)};
  return {true, concat("CUDA device ", device, ", ", capability)};
}

int first_device(Capability needed) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    cudaGetLastError();
    return kNoDevice;
  }
  for (int device = 0; device < count; ++device) {
    Capability found;
    if (capability_of(device, &found) == cudaSuccess && found == needed) return device;
  }
  return kNoDevice;
}

Status check_device(int device, Capability needed) {
  Capability found;
  if (const cudaError_t error = capability_of(device, &found); error != cudaSuccess) {
    return unsupported("cuda:", device, ": ", text_of(error));
  }
  if (found == needed) return {};
  return unsupported("cuda:", device, " has compute capability ", found.major, ".", found.minor,
                     "; the kernels need ", needed.major, ".", needed.minor);
}

Status count_multiprocessors(int device, int* count) {
  const cudaError_t error = cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
  return error == cudaSuccess ? Status{} : unsupported("cuda:", device, ": ", text_of(error));
}

Status read_back(void* to, const void* from, int64_t bytes, int device, void* stream) {
  const DeviceScope scope(device);
  cudaError_t error = scope.error();
  const auto queue = static_cast<cudaStream_t>(stream);
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToHost, queue);
  }
  if (error == cudaSuccess) error = cudaStreamSynchronize(queue);
  if (error == cudaSuccess) return {};
  return {StatusCode::device_error, concat("cuda:", device, ": ", text_of(error))};
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

}  // namespace fa3::cuda
