// SPDX-License-Identifier: Apache-2.0
// A backward kernel instance: functions and sizes for the launcher.
#pragma once

#include "engine/hopper/tables/backward_table.h"

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
  const void* main;
  const void* postprocess;
  int smem_bytes;                  // of both main kernels
  const void* main_deterministic;  // config.deterministic()

  // Dense kernels have their own, or those of the row for all calls with the same head dims.
  StepSplitKernels splits;

  // General kernels, if a warpgroup's registers hold dK and dV; else null.
  const void* short_sequences = nullptr;
  const void* packed_sequences = nullptr;  // the same with PackGQA
  int short_smem_bytes = 0;
};

// Defined by the generated source file of row `Row` (backward_entry.cuh).
template <int Row, Element E, Variant V>
BackwardKernel backward_entry();

// The kernels of a row of kBackwardTable.
BackwardKernel backward_kernel_at(int row, Element element, Variant variant);

// The same for a row of kDropoutBackwardTable.
template <int Row, Element E>
BackwardKernel dropout_backward_entry();
BackwardKernel dropout_backward_kernel_at(int row, Element element);

// The same for a row of kMaskBackwardTable.
template <int Row, Element E, Variant V>
BackwardKernel mask_backward_entry();
BackwardKernel mask_backward_kernel_at(int row, Element element, Variant variant);

// The same for a row of kWideBackwardTable.
template <int Row, Element E>
BackwardKernel wide_backward_entry();
BackwardKernel wide_backward_kernel_at(int row, Element element);

// The same for a row of kDenseBackwardTable.
template <int Row, Element E>
BackwardKernel dense_backward_entry();
BackwardKernel dense_backward_kernel_at(int row, Element element);

}  // namespace fa3::hopper
