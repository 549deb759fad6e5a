// SPDX-License-Identifier: Apache-2.0
// As in src/engine/cuda/, on the emulator.
#pragma once

#include "emulator.h"

namespace fa3::cuda {

inline void cp_async_16(uint32_t smem, const void* global, bool exists) {
  emulator::copy_later(smem, global, 16, exists ? 16 : 0);
}
template <int Width>
void cp_async_first(uint32_t smem, const void* global, int bytes) {
  emulator::copy_later(smem, global, Width, bytes);
}
inline void cp_async_commit_group() {
  emulator::end_copy_group();
}
template <int Newest>
void cp_async_wait_group() {
  emulator::wait_for_copies(Newest);
}

}  // namespace fa3::cuda
