// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/, on the machine of the protocol test.
#pragma once

#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/tile/tile_layout.h"
#include "instructions.h"

namespace fa3::hopper::ptx {

using cuda::Element;
using cuda::Major;

inline void wgmma_fence() {}
inline void wgmma_commit_group() {
  machine::commit_products();
}
template <int Pending>
void wgmma_wait_group() {
  machine::wait_for_products(Pending);
}
template <Element E, Major A = Major::kK, Major B = Major::kK, int Count>
void wgmma_m64k16_ss(float (&d)[Count], uint64_t a_desc, uint64_t b_desc, int add) {
  machine::multiply(d, Count, {.descriptor = a_desc, .major = A},
                    {.descriptor = b_desc, .major = B}, add != 0);
}
template <Element E, Major B = Major::kMn, int Count>
void wgmma_m64k16_rs(float (&d)[Count], const uint32_t (&)[4], uint64_t b_desc, int add) {
  machine::multiply(d, Count, {.in_registers = true}, {.descriptor = b_desc, .major = B}, add != 0);
}
template <int Count>
void wgmma_m64k32_ss(float (&d)[Count], uint64_t a_desc, uint64_t b_desc, int add) {
  machine::multiply(d, Count, {.descriptor = a_desc, .element_bytes = 1},
                    {.descriptor = b_desc, .element_bytes = 1}, add != 0);
}
template <int Count>
void wgmma_m64k32_rs(float (&d)[Count], const uint32_t (&)[4], uint64_t b_desc, int add) {
  machine::multiply(d, Count, {.in_registers = true}, {.descriptor = b_desc, .element_bytes = 1},
                    add != 0);
}

}  // namespace fa3::hopper::ptx
