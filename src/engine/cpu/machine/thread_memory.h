// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/workspace.h"

namespace fa3::cpu {

// Equal slices of a workspace, one for each worker of parallel_for.
struct ThreadMemory {
  std::byte* first = nullptr;
  int64_t bytes_each = 0;

  WorkspaceAllocator operator[](int worker) const {
    return WorkspaceAllocator(first + worker * bytes_each);
  }
};

// `describe` carves what one worker needs, here only to count it.
template <class Describe>
ThreadMemory take_thread_memory(WorkspaceAllocator& allocator, int num_threads,
                                Describe&& describe) {
  const int64_t bytes_each = bytes_of(describe);
  return {allocator.take<std::byte>(num_threads, bytes_each), bytes_each};
}

}  // namespace fa3::cpu
