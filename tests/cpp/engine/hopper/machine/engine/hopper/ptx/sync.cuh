// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "machine.h"

namespace fa3::hopper::ptx {

inline void bar_sync(int id, int threads) {
  constexpr int kEndOfPass = 4;  // roles::NamedBarrier, of all warps
  if (id == kEndOfPass) {
    machine::sync_block();
  } else {
    machine::named_sync(id, threads);
  }
}
inline void bar_arrive(int id, int threads) {
  machine::named_arrive(id, threads);
}
inline unsigned tid_x() {
  return threadIdx.x;
}
inline uint32_t cvta_to_shared(const void*) {
  return machine::kSmemBase;
}
inline bool elect_sync() {
  return true;
}
template <int Registers>
void setmaxnreg_inc() {}
template <int Registers>
void setmaxnreg_dec() {}

}  // namespace fa3::hopper::ptx
