// SPDX-License-Identifier: Apache-2.0
// A backward kernel instance: functions and sizes for the launcher.
#pragma once

#include "engine/hopper/kernels/backward.h"

namespace fa3::hopper {

// Kernels for key blocks whose steps are split: the main one, and postprocess of dK's and dV's
// sums.
struct StepSplitKernels {
  BackwardConfig config;
  const void* main = nullptr;
  int smem_bytes = 0;
  const void* postprocess_dk = nullptr;
  const void* postprocess_dv = nullptr;
};

// Functions for cudaLaunchKernel.
struct BackwardKernel {
  BackwardConfig config;
  const void* preprocess;
  const void* gated_preprocess;  // GatedPreprocessParams
  const void* main;
  const void* postprocess;
  int smem_bytes;                  // of both main kernels
  const void* main_deterministic;  // config.deterministic()

  // Dense kernels have their own, or those of the row for all calls with the same head dims, if
  // that has the same query blocks.
  StepSplitKernels splits;

  // General kernels, if a warpgroup's registers hold dK and dV; else null.
  const void* short_sequences = nullptr;
  const void* packed_sequences = nullptr;  // the same with PackGQA
  int short_smem_bytes = 0;
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

// The kernels of a row of kBackward that is built.
BackwardKernel backward_kernel_at(const BackwardRow& row, Element element);

}  // namespace fa3::hopper
