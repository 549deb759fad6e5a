// SPDX-License-Identifier: Apache-2.0
#include "support/memory/sparse_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <stdexcept>

namespace fa3::test {

SparseMemory::SparseMemory(fa3_device_type memory, size_t bytes) : bytes_(bytes) {
  if (memory == FA3_CUDA) {
    device_ = DeviceMemory(bytes);
    return;
  }
  mapped_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped_ == MAP_FAILED) throw std::runtime_error("the system grants no sparse memory");
}

SparseMemory::~SparseMemory() {
  if (mapped_ != nullptr) munmap(mapped_, bytes_);
}

std::byte* SparseMemory::data() const {
  return mapped_ != nullptr ? static_cast<std::byte*>(mapped_) : device_.data();
}

void SparseMemory::write(size_t at, const void* host, size_t bytes) {
  mapped_ != nullptr ? (void)std::memcpy(data() + at, host, bytes) : device_.write(at, host, bytes);
}

void SparseMemory::read(size_t at, void* host, size_t bytes) const {
  mapped_ != nullptr ? (void)std::memcpy(host, data() + at, bytes) : device_.read(at, host, bytes);
}

}  // namespace fa3::test
