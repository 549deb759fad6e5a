// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, with numbers. Copies arrive when their thread waits for them, no sooner;
// until then NaN lies in their place.
#pragma once

#include <vector>

#include "failure.h"
#include "instructions.h"

namespace fa3::cuda {

inline void copy_late(uint32_t smem, const void* global, int width, int bytes) {
  if (smem % unsigned(width) != 0) machine::fail("cp.async: a misaligned address");
  if (bytes > 0 && reinterpret_cast<uintptr_t>(global) % unsigned(width) != 0) {
    machine::fail("cp.async: a misaligned source");
  }
  std::vector<unsigned char> arriving(size_t(width), 0);
  if (bytes > 0) std::memcpy(arriving.data(), global, size_t(bytes));
  machine::copy_by_thread(smem, std::move(arriving));
  std::memset(machine::smem_at(smem), 0xff, size_t(width));
}

inline void cp_async_16(uint32_t smem, const void* global, bool exists) {
  copy_late(smem, global, 16, exists ? 16 : 0);
}
template <int Width>
void cp_async_first(uint32_t smem, const void* global, int bytes) {
  copy_late(smem, global, Width, bytes);
}
inline void cp_async_commit_group() {
  machine::commit_thread_copies();
}
template <int Newest>
void cp_async_wait_group() {
  machine::wait_for_thread_copies(Newest);
}
inline void cp_async_wait_all() {
  machine::wait_for_thread_copies();
}

}  // namespace fa3::cuda
