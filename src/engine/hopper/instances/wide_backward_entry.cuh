// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one row of
// wide_backward_table.h.
#pragma once

#include "engine/hopper/instances/backward_entry.cuh"
#include "engine/hopper/tables/wide_backward_table.h"

namespace fa3::hopper {

template <int Row, Element E>
BackwardKernel wide_backward_entry() {
  constexpr BackwardConfig kTile = kWideBackwardTable[Row].config;
  return backward_kernel_of<kTile.with(E, kTile.variant)>();
}

}  // namespace fa3::hopper
