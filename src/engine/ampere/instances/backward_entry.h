// SPDX-License-Identifier: Apache-2.0
// The kernels of a backward call, for the launcher.
#pragma once

#include "engine/ampere/kernels/backward.h"

namespace fa3::ampere {

// Functions for cudaLaunchKernel.
struct BackwardKernel {
  BackwardConfig config;
  const void* preprocess;
  const void* gated_preprocess;  // GatedPreprocessParams
  const void* main;
  const void* postprocess;
  int smem_bytes;  // of the main kernel
};

// Defined by the generated source of row `Row` of kBackward (backward_entry.cuh).
template <int Row, Element E>
BackwardKernel backward_entry();

template <Element E>
auto entry_of(const BackwardRow& row) {
  static constexpr auto kEntries =
      cuda::entries_of<kBackward>([]<int Row>() { return &backward_entry<Row, E>; });
  return kEntries[size_t(&row - kBackward.data())];
}

// The kernels of a row of kBackward.
BackwardKernel backward_kernel_at(const BackwardRow& row, Element element);

}  // namespace fa3::ampere
