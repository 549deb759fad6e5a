// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one row of
// mask_backward_table.h.
#pragma once

#include "engine/ampere/instances/backward_entry.cuh"
#include "engine/ampere/tables/mask_backward_table.h"

namespace fa3::ampere {

template <int Row, Element E>
BackwardKernel mask_backward_entry() {
  return backward_kernel_of<kMaskBackwardTable[Row].config.with(E, true)>();
}

}  // namespace fa3::ampere
