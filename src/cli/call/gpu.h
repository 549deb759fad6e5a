// SPDX-License-Identifier: Apache-2.0
//
// The GPU that the hopper engine computes on, as commands need it: memory, copies and a clock.
// gpu_cuda.cpp has it where CUDA was found, gpu_absent.cpp refuses elsewhere. The driver is loaded
// by the first call and not before, so that a command without a GPU never misses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace fa3::cli::gpu {

// The device's CUDA number; 0 where there is none, so that questions can be asked anywhere.
int device_index();
std::string name();
// Throws where the GPU has not that many bytes free, beside what seconds_of() takes: code 3.
void require_memory(const std::string& what, int64_t bytes);

// Device memory, at least one byte, aligned to 256 bytes. Throws CommandError if there is none
// left.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes);
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  void read_from(const std::byte* host);
  void write_to(std::byte* host) const;

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Seconds, by the device's own clock, of the work that `queue` puts on the default stream. The L2
// cache is flushed before, so that inputs come from memory as in a model.
double seconds_of(const std::function<void()>& queue);

}  // namespace fa3::cli::gpu
