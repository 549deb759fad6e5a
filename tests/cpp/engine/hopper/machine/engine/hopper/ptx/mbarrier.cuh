// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "instructions.h"

namespace fa3::hopper::ptx {

inline void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  machine::barrier_init(barrier, arrivals);
}
inline void fence_mbarrier_init() {
  machine::fence_mbarrier_init();
}
inline void mbarrier_arrive(uint32_t barrier) {
  machine::barrier_arrive(barrier, 0);
}
inline void mbarrier_arrive_expect_tx(uint32_t barrier, uint32_t bytes) {
  machine::barrier_arrive(barrier, bytes);
}
inline bool mbarrier_try_wait_parity(uint32_t barrier, uint32_t parity) {
  return machine::barrier_passed(barrier, parity);
}
inline void mbarrier_wait_parity(uint32_t barrier, uint32_t parity) {
  machine::barrier_wait(barrier, parity);
}

}  // namespace fa3::hopper::ptx
