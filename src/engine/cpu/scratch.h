// SPDX-License-Identifier: Apache-2.0
//
// Carves typed arrays out of the caller's workspace. Planning and running carve with the same
// function: planning from a null base only counts bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fa3::cpu {

class Scratch {
 public:
  explicit Scratch(void* base = nullptr) : base_(static_cast<std::byte*>(base)) {}

  // `count` elements, aligned to a cache line; null while counting.
  template <class T>
  T* take(int64_t count) {
    constexpr int64_t kCacheLine = 64;
    const int64_t offset = used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + kCacheLine - 1) / kCacheLine * kCacheLine;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + offset);
  }

  int64_t bytes() const { return used_; }

 private:
  std::byte* base_;
  int64_t used_ = 0;
};

}  // namespace fa3::cpu
