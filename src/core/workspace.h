// SPDX-License-Identifier: Apache-2.0
//
// A workspace is described once, by a function that takes a WorkspaceAllocator and returns
// pointers. Without memory the allocator only counts, so a plan asks for exactly what a run takes:
//
//   struct Parts { float* sums; int* counter; };
//   Parts allocate(const Problem& p, WorkspaceAllocator& allocator) {
//     return {allocator.take<float>(p.batch, p.heads_q), allocator.take<int>(1)};
//   }
//   planning:  plan->workspace_bytes = bytes_of([&](auto& allocator) { allocate(p, allocator); });
//   running:   WorkspaceAllocator allocator(workspace);  const Parts parts = allocate(p,
//   allocator);
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/plan.h"

namespace fa3 {

// The product, or kTooManyBytes where it is more: sizes beyond any memory stay in 64 bits.
template <class... Factors>
constexpr int64_t capped_product(Factors... factors) {
  int64_t product = 1;
  for (int64_t factor : {int64_t{factors}...}) {
    if (factor == 0) return 0;
    product = product > kTooManyBytes / factor ? kTooManyBytes : product * factor;
  }
  return product;
}

class WorkspaceAllocator {
 public:
  static constexpr int64_t kAlignment = 64;  // a cache line; a GPU's workspace has 256

  constexpr WorkspaceAllocator() = default;  // only counts
  explicit WorkspaceAllocator(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  // An array of these extents; null while counting.
  template <class T, class... Extents>
  constexpr T* take(Extents... extents) {
    const int64_t offset = bytes_;
    const int64_t bytes = capped_product(int64_t{sizeof(T)}, int64_t{extents}...);
    bytes_ = std::min(bytes_ + (bytes + kAlignment - 1) / kAlignment * kAlignment, kTooManyBytes);
    return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + offset);
  }

  constexpr int64_t bytes() const { return bytes_; }

 private:
  std::byte* memory_ = nullptr;
  int64_t bytes_ = 0;
};

template <class Describe>
constexpr int64_t bytes_of(Describe&& describe) {
  WorkspaceAllocator count;
  describe(count);
  return count.bytes();
}

}  // namespace fa3
