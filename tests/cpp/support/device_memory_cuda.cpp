// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "support/device_memory.h"

namespace fa3::test {
namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string("GPU: ") + what + ": " + cudaGetErrorString(error));
}

}  // namespace

DeviceMemory::DeviceMemory(size_t bytes) {
  check(cudaSetDevice(kDevice), "cannot be used");
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes > 0 ? bytes : 1), "no memory left");
  data_ = static_cast<std::byte*>(memory);
  check(cudaMemset(data_, 0xff, bytes), "filling memory failed");
}

DeviceMemory::~DeviceMemory() {
  if (data_ != nullptr) cudaFree(data_);
}

void DeviceMemory::write(size_t at, const void* host, size_t bytes) {
  check(cudaMemcpy(data_ + at, host, bytes, cudaMemcpyHostToDevice), "copying to it failed");
}

void DeviceMemory::read(size_t at, void* host, size_t bytes) const {
  check(cudaMemcpy(host, data_ + at, bytes, cudaMemcpyDeviceToHost),
        "the call, or copying its results, failed");
}

}  // namespace fa3::test
