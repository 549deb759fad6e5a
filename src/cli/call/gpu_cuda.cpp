// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <algorithm>

#include "cli/call/gpu.h"
#include "cli/exit_code.h"
#include "cli/text.h"
#include "core/error.h"
#include "engine/ampere/engine.h"
#include "engine/cuda/host/device.h"
#include "engine/hopper/engine.h"

namespace fa3::cli::gpu {
namespace {

constexpr int64_t kFlushBytes = int64_t{256} << 20;  // several times the L2 cache of an H200

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) {
    throw CommandError(kExitFailed, concat("GPU: ", what, ": ", cudaGetErrorString(error)));
  }
}

// What outlives single calls: the choice of device, two events, and the memory that flushes the L2.
struct Clock {
  cudaEvent_t begin = nullptr, end = nullptr;
  Buffer flushed{kFlushBytes};

  Clock() {
    check(cudaEventCreate(&begin), "cannot create an event");
    check(cudaEventCreate(&end), "cannot create an event");
  }
  ~Clock() {
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
  }
};

}  // namespace

int device_index() {
  static const int index = [] {
    const int best = cuda::first_device(hopper::kCapability);
    return std::max(0, best != cuda::kNoDevice ? best : cuda::first_device(ampere::kCapability));
  }();
  return index;
}

std::string name() {
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, device_index()), "cannot ask for its name");
  return properties.name;
}

void require_memory(const std::string& what, int64_t bytes) {
  check(cudaSetDevice(device_index()), "cannot be used");
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cannot ask for its memory");
  const int64_t available = static_cast<int64_t>(free) - kFlushBytes;
  if (bytes <= available) return;
  throw CommandError(kExitUnsupported, concat(what, ": expected at most ",
                                              bytes_text(std::max<int64_t>(available, 0)),
                                              ", which the GPU has free, got ", bytes_text(bytes)));
}

Buffer::Buffer(int64_t bytes) : bytes_(bytes) {
  check(cudaSetDevice(device_index()), "cannot be used");
  void* memory = nullptr;
  if (cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(bytes, 1))) != cudaSuccess) {
    cudaGetLastError();
    throw CommandError(kExitUnsupported, concat("the GPU has no ", bytes_text(bytes),
                                                " of memory left; use a smaller shape"));
  }
  data_ = static_cast<std::byte*>(memory);
}

Buffer::~Buffer() {
  if (data_ != nullptr) cudaFree(data_);
}

void Buffer::read_from(const std::byte* host) {
  check(cudaMemcpy(data_, host, static_cast<size_t>(bytes_), cudaMemcpyHostToDevice),
        "copying to it failed");
}

// Waits for what was queued before, and learns of its errors.
void Buffer::write_to(std::byte* host) const {
  check(cudaMemcpy(host, data_, static_cast<size_t>(bytes_), cudaMemcpyDeviceToHost),
        "copying from it failed");
}

double seconds_of(const std::function<void()>& queue) {
  static const Clock clock;
  check(cudaMemsetAsync(clock.flushed.data(), 0, static_cast<size_t>(clock.flushed.bytes())),
        "flushing its cache failed");
  check(cudaEventRecord(clock.begin), "cannot record an event");
  queue();
  check(cudaEventRecord(clock.end), "cannot record an event");
  check(cudaEventSynchronize(clock.end), "the call failed");
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, clock.begin, clock.end), "cannot read its clock");
  return double{milliseconds} * 1e-3;
}

}  // namespace fa3::cli::gpu
