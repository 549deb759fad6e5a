// SPDX-License-Identifier: Apache-2.0
#include <stdexcept>

#include "support/memory/device_memory.h"

namespace fa3::test {
namespace {

[[noreturn]] void refuse() {
  throw std::runtime_error("this build has no CUDA, so its tests cannot use a GPU's memory");
}

}  // namespace

DeviceMemory::DeviceMemory(size_t) {
  refuse();
}
DeviceMemory::~DeviceMemory() = default;
void DeviceMemory::write(size_t, const void*, size_t) {
  refuse();
}
void DeviceMemory::read(size_t, void*, size_t) const {
  refuse();
}

}  // namespace fa3::test
