// SPDX-License-Identifier: Apache-2.0
#include "support/memory/guarded_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace fa3::test {

GuardedMemory::GuardedMemory(fa3_device_type memory, size_t bytes, size_t alignment)
    : bytes_(bytes) {
  const auto begin_before = [&](std::byte* end) {
    const auto last = reinterpret_cast<uintptr_t>(end) - bytes;
    return end - bytes - last % alignment;
  };
  if (memory == FA3_CUDA) {
    device_ = DeviceMemory(bytes + alignment);
    data_ = begin_before(device_.data() + device_.mapped());
    return;
  }
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t used = (bytes + alignment + page - 1) / page * page;
  mapped_bytes_ = used + 2 * page;
  void* all = mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (all == MAP_FAILED) throw std::runtime_error("no memory for guarded pages");
  mapped_ = static_cast<std::byte*>(all);
  if (mprotect(mapped_ + page, used, PROT_READ | PROT_WRITE) != 0) {
    throw std::runtime_error("guarded pages cannot be opened");
  }
  std::memset(mapped_ + page, 0xff, used);
  data_ = begin_before(mapped_ + page + used);
}

GuardedMemory::GuardedMemory(GuardedMemory&& other) noexcept
    : bytes_(other.bytes_),
      data_(other.data_),
      mapped_(std::exchange(other.mapped_, nullptr)),
      mapped_bytes_(other.mapped_bytes_),
      device_(std::move(other.device_)) {}

GuardedMemory::~GuardedMemory() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_bytes_);
}

void GuardedMemory::write(const void* host, size_t bytes) {
  if (bytes == 0) return;
  if (mapped_ != nullptr) {
    std::memcpy(data_, host, bytes);
  } else {
    device_.write(static_cast<size_t>(data_ - device_.data()), host, bytes);
  }
}

void GuardedMemory::read(void* host) const {
  if (bytes_ == 0) return;
  if (mapped_ != nullptr) {
    std::memcpy(host, data_, bytes_);
  } else {
    device_.read(static_cast<size_t>(data_ - device_.data()), host, bytes_);
  }
}

}  // namespace fa3::test
