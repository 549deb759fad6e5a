// SPDX-License-Identifier: Apache-2.0
//
// Carves typed arrays out of the caller's workspace. Planning and running carve with the same
// function: planning from a null base only counts bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/plan.h"

namespace fa3::cpu {

// count * size, or kTooManyBytes where that is more: sums of sizes beyond any memory stay in 64 bits.
constexpr int64_t capped_bytes(int64_t count, int64_t size) {
  int64_t bytes = 0;
  const bool fits = !__builtin_mul_overflow(count, size, &bytes) && bytes < kTooManyBytes;
  return fits ? bytes : kTooManyBytes;
}

class Scratch {
 public:
  explicit Scratch(void* base = nullptr) : base_(static_cast<std::byte*>(base)) {}

  // `count` elements, aligned to a cache line; null while counting.
  template <class T>
  T* take(int64_t count) {
    constexpr int64_t kCacheLine = 64;
    const int64_t offset = used_;
    const int64_t bytes = capped_bytes(count, sizeof(T));
    used_ = std::min(used_ + (bytes + kCacheLine - 1) / kCacheLine * kCacheLine, kTooManyBytes);
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }

  int64_t bytes() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

}  // namespace fa3::cpu
