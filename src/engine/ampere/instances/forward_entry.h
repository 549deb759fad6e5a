// SPDX-License-Identifier: Apache-2.0
// A built kernel as the launcher sees it, and where to get it.
#pragma once

#include "engine/ampere/kernels/forward.h"

namespace fa3::ampere {

struct ForwardKernel {
  ForwardConfig config;
  const void* function;  // for cudaLaunchKernel
};

// Defined by the generated source of row `Row` of kForward (forward_entry.cuh).
template <int Row, Element E>
ForwardKernel forward_entry();

template <Element E>
auto entry_of(const Row& row) {
  static constexpr auto kEntries =
      cuda::entries_of<kForward>([]<int Row>() { return &forward_entry<Row, E>; });
  return kEntries[size_t(&row - kForward.data())];
}

// The kernel of a row of kForward.
ForwardKernel forward_kernel_at(const Row& row, Element element);

}  // namespace fa3::ampere
