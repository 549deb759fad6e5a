// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one row of
// mask_backward_table.h.
#pragma once

#include "engine/hopper/instances/backward_entry.cuh"
#include "engine/hopper/tables/mask_backward_table.h"

namespace fa3::hopper {

template <int Row, Element E, Variant V>
BackwardKernel mask_backward_entry() {
  return backward_kernel_of<kMaskBackwardTable[Row].config.with(E, V)>();
}

}  // namespace fa3::hopper
