// SPDX-License-Identifier: Apache-2.0
// A built kernel as the launcher sees it, and where to get it.
#pragma once

#include "engine/ampere/tables/forward_table.h"

namespace fa3::ampere {

struct ForwardKernel {
  ForwardConfig config;
  const void* function;  // for cudaLaunchKernel
};

// Defined by the generated source file of row `Row` (forward_entry.cuh).
template <int Row, Element E>
ForwardKernel forward_entry();

// The kernel of a row of kForwardTable for an element type.
ForwardKernel forward_kernel_at(int row, Element element);

}  // namespace fa3::ampere
