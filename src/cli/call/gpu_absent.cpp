// SPDX-License-Identifier: Apache-2.0
#include "cli/call/gpu.h"
#include "cli/exit_code.h"

namespace fa3::cli::gpu {
namespace {

[[noreturn]] void refuse() {
  throw CommandError(kExitUnsupported, "this build has no CUDA, so it cannot use a GPU");
}

}  // namespace

int device_index() {
  return 0;
}
std::string name() {
  refuse();
}

void require_memory(const std::string&, int64_t) {
  refuse();
}

Buffer::Buffer(int64_t) {
  refuse();
}
Buffer::~Buffer() = default;
void Buffer::read_from(const std::byte*) {
  refuse();
}
void Buffer::write_to(std::byte*) const {
  refuse();
}

double seconds_of(const std::function<void()>&) {
  refuse();
}

}  // namespace fa3::cli::gpu
