// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one row of
// dense_backward_table.h.
#pragma once

#include "engine/hopper/instances/backward_entry.cuh"
#include "engine/hopper/tables/dense_backward_table.h"

namespace fa3::hopper {

template <int Row, Element E>
BackwardKernel dense_backward_entry() {
  return backward_kernel_of<kDenseBackwardTable[Row].config.with(E, Variant::kDense)>();
}

}  // namespace fa3::hopper
