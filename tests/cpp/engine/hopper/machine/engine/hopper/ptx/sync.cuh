// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "cuda_words.h"
#include "engine/cuda/ptx/instructions.cuh"
#include "instructions.h"

namespace fa3::hopper::ptx {

using cuda::cvta_to_shared;

inline void bar_sync(int id, int threads) {
  machine::named_sync(id, threads);
}
inline unsigned bar_count(int id, int threads, bool value) {
  return machine::named_count(id, threads, value);
}
inline void bar_arrive(int id, int threads) {
  machine::named_arrive(id, threads);
}
inline bool elect_sync() {
  return machine::own_lane() == 0;
}
template <int Registers>
void setmaxnreg_inc() {
  machine::set_registers(Registers, true);
}
template <int Registers>
void setmaxnreg_dec() {
  machine::set_registers(Registers, false);
}

inline void fence_proxy_async() {
  machine::fence_proxy_async();
}

inline void fence_proxy_async_global() {
  machine::fence_proxy_async_global();
}

inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() {
  machine::wait_for_kernel_before();
}

}  // namespace fa3::hopper::ptx
