// SPDX-License-Identifier: Apache-2.0
// A built backward as the launcher sees it, and where to get it.
#pragma once

#include "engine/hopper/instances/backward_table.h"

namespace fa3::hopper {

// Functions for cudaLaunchKernel.
struct BackwardKernel {
  BackwardConfig config;
  const void* preprocess;
  const void* main;
  const void* postprocess;
  int smem_bytes;                  // of main
  const void* main_deterministic;  // config.deterministic(), as many bytes

  // Of dense kernels: config.sharing_keys(), and what writes the sums of dK and of dV; else null.
  const void* main_of_shares = nullptr;
  const void* write_dk = nullptr;
  const void* write_dv = nullptr;

  // Of kernels that know lengths, where a warpgroup's registers hold dK and dV; else null.
  const void* short_sequences = nullptr;
  int short_smem_bytes = 0;
};

// Defined by the generated source file of row `Row` (backward_entry.cuh).
template <int Row, Element E, Variant V>
BackwardKernel backward_entry();

// The kernels of a row of kBackwardTable for an element type.
BackwardKernel backward_kernel_at(int row, Element element, Variant variant);

}  // namespace fa3::hopper
