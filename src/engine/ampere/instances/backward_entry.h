// SPDX-License-Identifier: Apache-2.0
// The kernels of a backward call, for the launcher.
#pragma once

#include "engine/ampere/tables/mask_backward_table.h"

namespace fa3::ampere {

// Functions for cudaLaunchKernel.
struct BackwardKernel {
  BackwardConfig config;
  const void* preprocess;
  const void* main;
  const void* postprocess;
  int smem_bytes;  // of the main kernel
};

// Defined by the generated source file of row `Row` (backward_entry.cuh).
template <int Row, Element E, bool Scored>
BackwardKernel backward_entry();

// Row `Row` of kMaskBackwardTable (backward_entry.cuh).
template <int Row, Element E>
BackwardKernel mask_backward_entry();

// The kernels of a row of kBackwardTable, or of kMaskBackwardTable.
BackwardKernel backward_kernel_at(int row, Element element, bool scored);
BackwardKernel mask_backward_kernel_at(int row, Element element);

}  // namespace fa3::ampere
