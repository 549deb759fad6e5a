// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one row of
// dropout_backward_table.h.
#pragma once

#include "engine/hopper/instances/backward_entry.cuh"
#include "engine/hopper/tables/dropout_backward_table.h"

namespace fa3::hopper {

template <int Row, Element E>
BackwardKernel dropout_backward_entry() {
  constexpr BackwardConfig kConfig = kDropoutBackwardTable[Row].config;
  return backward_kernel_of<kConfig.with(E, kConfig.variant)>();
}

}  // namespace fa3::hopper
