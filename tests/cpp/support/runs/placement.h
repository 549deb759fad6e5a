// SPDX-License-Identifier: Apache-2.0
//
// The tensors of one call, in the memory that the engine computes on. Tests fill and read tensors
// in host memory. For an engine of the host they are used where they are; for a GPU, each is copied
// with its guards, between further guards, and the outputs come back after the call.
#pragma once

#include <fa3/fa3.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/cases/tensor.h"
#include "support/memory/device_memory.h"

namespace fa3::test {

// Exactly `bytes` bytes at an odd address, full of NaN, with guards on both sides.
class GuardedWorkspace {
 public:
  explicit GuardedWorkspace(size_t bytes);
  void* data();
  bool guards_intact() const;

 private:
  size_t bytes_, first_;
  std::vector<std::byte> memory_;
};

// Says in a view whose memory it means: all that a question needs, whatever its address.
void claim(fa3_device_type memory, fa3_tensor* view);

class Placement {
 public:
  explicit Placement(fa3_device_type memory) : memory_(memory) {}

  // The view, of the tensor's host memory, becomes one of the engine's memory.
  void input(const Tensor& tensor, fa3_tensor* view);
  void input(const std::vector<int32_t>& lengths, fa3_tensor* view);
  // Numbers that the view itself tells of, one after the other.
  void input(const fa3_tensor& numbers, fa3_tensor* view);
  void output(Tensor* tensor, fa3_tensor* view);
  void* workspace(size_t bytes);

  // After the call: the outputs come back. "" or what was written that should not have been.
  std::string fetch();

 private:
  struct Copy {
    DeviceMemory device;
    const std::byte* before;  // host: what it held, or null: NaN
    std::byte* after;         // host: where it goes, or null: it must not have changed
    size_t bytes;
  };
  void place(const std::byte* before, std::byte* after, size_t bytes, fa3_tensor* view);
  static std::string fetch(const Copy& copy);

  fa3_device_type memory_;
  std::vector<Copy> copies_;
  std::vector<GuardedWorkspace> workspaces_;  // of the host; at most one
};

}  // namespace fa3::test
