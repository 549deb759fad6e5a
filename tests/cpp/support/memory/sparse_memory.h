// SPDX-License-Identifier: Apache-2.0
//
// Far more memory than a test touches, of the host or of a GPU, for offsets beyond 32 bits.
#pragma once

#include <fa3/fa3.h>

#include <cstddef>

#include "support/memory/device_memory.h"

namespace fa3::test {

class SparseMemory {
 public:
  SparseMemory(fa3_device_type memory, size_t bytes);
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  ~SparseMemory();

  std::byte* data() const;
  void write(size_t at, const void* host, size_t bytes);
  void read(size_t at, void* host, size_t bytes) const;

 private:
  void* mapped_ = nullptr;  // host: pages exist once they are touched
  size_t bytes_;
  DeviceMemory device_;
};

}  // namespace fa3::test
