// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test. Warps of a warpgroup need not
// keep step here, which is more than the hardware allows them.
#pragma once

#include <algorithm>

#include "engine/hopper/ptx/element.h"
#include "machine.h"

namespace fa3::hopper::ptx {

inline void wgmma_fence() {}
inline void wgmma_commit_group() {
  machine::commit_products();
}
template <int Pending>
void wgmma_wait_group() {
  machine::wait_for_products(Pending);
}
template <Element E, int Count>
void wgmma_m64k16_ss(float (&d)[Count], uint64_t a_desc, uint64_t b_desc, int) {
  std::fill(d, d + Count, machine::multiply_scores(a_desc, b_desc, 2 * Count));
}
template <Element E, int Count>
void wgmma_m64k16_rs(float (&)[Count], const uint32_t (&)[4], uint64_t b_desc, int) {
  machine::multiply_output(b_desc, 2 * Count);
}

}  // namespace fa3::hopper::ptx
