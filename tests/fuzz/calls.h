// SPDX-License-Identifier: Apache-2.0
//
// What the fuzzers of calls share: values out of the fuzzer's bytes, and tensors with exactly the
// memory that their view reaches, so that the address sanitizer sees every byte beside it.
#pragma once

#include <fa3/fa3.h>
#include <fuzzer/FuzzedDataProvider.h>

#include <list>
#include <memory>
#include <vector>

namespace fa3::fuzz {

void check(bool holds, const char* what);

// A value as callers give it, or, rarely, any value at all.
int64_t extent(FuzzedDataProvider& bytes);
float real(FuzzedDataProvider& bytes);

// Memory of the views of one call. Freed with it.
class Memory {
 public:
  static constexpr int64_t kMost = 1 << 20;  // bytes of one view

  // Gives the view as much memory as it reaches, filled with small numbers; false, with data null,
  // where that is more than kMost or where the view reaches before its data.
  bool back(fa3_tensor* view);
  void* workspace(size_t bytes);

 private:
  std::list<std::vector<char>> blocks_;
  std::list<std::unique_ptr<void, void (*)(void*)>> workspaces_;
};

// A dense view of these extents.
fa3_tensor dense(int32_t dtype, std::vector<int64_t> shape);

}  // namespace fa3::fuzz
