// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, on the machine of the protocol test.
#pragma once

#include "instructions.h"

namespace fa3::cuda {

inline void cp_async_16(uint32_t smem, const void* global, bool exists) {
  machine::copy_by_thread(smem, exists ? global : nullptr);
}
template <int Width>
void cp_async_first(uint32_t smem, const void* global, int bytes) {
  machine::copy_by_thread(smem, bytes > 0 ? global : nullptr);
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
