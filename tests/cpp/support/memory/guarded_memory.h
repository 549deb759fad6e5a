// SPDX-License-Identifier: Apache-2.0
//
// Memory behind whose last byte there is none, of the host or of a GPU: who reads or writes there
// faults. Before its first byte there is none either, up to a page.
#pragma once

#include <fa3/fa3.h>

#include <cstddef>

#include "support/memory/device_memory.h"

namespace fa3::test {

class GuardedMemory {
 public:
  // The data's address is a multiple of `alignment`, and every byte is 0xff. Where `bytes` are a
  // multiple of it too, the data ends with the memory.
  GuardedMemory(fa3_device_type memory, size_t bytes, size_t alignment);
  GuardedMemory(GuardedMemory&& other) noexcept;
  GuardedMemory& operator=(GuardedMemory&&) = delete;
  ~GuardedMemory();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void write(const void* host, size_t bytes);
  // Waits for the work that was queued before, and learns of its errors.
  void read(void* host) const;

 private:
  size_t bytes_;
  std::byte* data_ = nullptr;
  std::byte* mapped_ = nullptr;  // host
  size_t mapped_bytes_ = 0;
  DeviceMemory device_;
};

}  // namespace fa3::test
