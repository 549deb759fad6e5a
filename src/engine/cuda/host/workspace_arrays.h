// SPDX-License-Identifier: Apache-2.0
// Arrays of a workspace by their offsets, in bytes from its beginning: a plan places them, its
// launch finds them.
#pragma once

#include "core/workspace.h"

namespace fa3::cuda {

constexpr int64_t kNoArray = -1;  // the offset of an array that the call does not need

template <class T, class... Extents>
int64_t place(WorkspaceAllocator& allocator, Extents... extents) {
  const int64_t offset = allocator.bytes();
  allocator.take<T>(extents...);
  return offset;
}

template <class T>
T* array_at(void* workspace, int64_t offset) {
  if (offset == kNoArray) return nullptr;
  return reinterpret_cast<T*>(static_cast<std::byte*>(workspace) + offset);
}

}  // namespace fa3::cuda
