// SPDX-License-Identifier: Apache-2.0
// An array in device memory, and tensors over it, for checks that call launchers themselves.
#pragma once

#include <fa3/fa3.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <vector>

#include "engine/cuda/tile/tensor_span.h"

namespace fa3::testing {

#define CHECK_CUDA(call)                                                                   \
  do {                                                                                     \
    const cudaError_t error_ = (call);                                                     \
    if (error_ != cudaSuccess) {                                                           \
      std::printf("FAILED %s line %d: %s\n", #call, __LINE__, cudaGetErrorString(error_)); \
      std::fflush(stdout);                                                                 \
      _exit(2);                                                                            \
    }                                                                                      \
  } while (0)

// SMs of the current device.
inline int device_sms() {
  int device = 0, sms = 0;
  CHECK_CUDA(cudaGetDevice(&device));
  CHECK_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  return sms;
}

// Filled with NaN.
template <typename T>
struct DeviceArray {
  T* data = nullptr;
  size_t count;
  explicit DeviceArray(size_t n) : count(n) {
    CHECK_CUDA(cudaMalloc(&data, std::max<size_t>(n, 1) * sizeof(T)));
    CHECK_CUDA(cudaMemset(data, 0xff, n * sizeof(T)));
  }
  explicit DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) {
    CHECK_CUDA(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data); }
  void clear() { CHECK_CUDA(cudaMemset(data, 0, count * sizeof(T))); }
  std::vector<T> fetch() const {
    std::vector<T> host(count);
    CHECK_CUDA(cudaMemcpy(host.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
    return host;
  }
};

// Dense, of the C interface.
inline fa3_tensor tensor_of(const void* data, int dtype, std::initializer_list<int64_t> shape) {
  fa3_tensor t{};
  t.data = const_cast<void*>(data);
  t.dtype = dtype, t.device_type = FA3_CUDA, t.rank = int(shape.size());
  int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    t.shape[i] = shape.begin()[i], t.stride[i] = stride, stride *= t.shape[i];
  }
  return t;
}

inline cuda::TensorSpan span_of(void* data, int batches, int rows, int heads, int columns) {
  return {data,
          batches,
          rows,
          heads,
          columns,
          int64_t{rows} * heads * columns,
          int64_t{heads} * columns,
          columns};
}

}  // namespace fa3::testing
