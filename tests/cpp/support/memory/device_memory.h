// SPDX-License-Identifier: Apache-2.0
//
// A GPU's memory, as placement.cpp needs it. device_memory_cuda.cpp has it where an engine for GPUs
// is built, device_memory_absent.cpp stands in elsewhere. Whatever fails throws, with a sentence.
#pragma once

#include <cstddef>
#include <utility>

namespace fa3::test {

// An allocation has no memory before its first byte, nor behind the last of its mapped() ones: a
// kernel that reads there faults.
class DeviceMemory {
 public:
  static constexpr int kDevice = 0;

  DeviceMemory() = default;
  explicit DeviceMemory(size_t bytes);  // every mapped byte 0xff: NaN in every float type
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), mapped_(other.mapped_) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(mapped_, other.mapped_);
    return *this;
  }
  ~DeviceMemory();

  std::byte* data() const { return data_; }
  size_t mapped() const { return mapped_; }
  void write(size_t at, const void* host, size_t bytes);
  // Waits for the work that was queued before, and learns of its errors.
  void read(size_t at, void* host, size_t bytes) const;

 private:
  std::byte* data_ = nullptr;
  size_t mapped_ = 0;  // bytes from data_ on
};

}  // namespace fa3::test
