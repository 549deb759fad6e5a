// SPDX-License-Identifier: Apache-2.0
// Included by the generated sources of kernels that a build leaves out: their entries,
// each with an address of its own in a kernel's place, which no GPU would launch. Planners and
// launchers run on them over a runtime that only counts.
#pragma once

#include "engine/hopper/instances/backward_entry.h"
#include "engine/hopper/instances/forward_entry.h"

namespace fa3::hopper {

enum class Part {
  kMain,
  kPreprocess,
  kGatedPreprocess,
  kPostprocess,
  kShortSequences,
  kPackedSequences
};

// Aligned as functions are.
template <auto Config, Part P = Part::kMain>
alignas(16) inline constexpr char kNoKernel[16] = {};

constexpr int kSomeSmem = 1 << 17;  // so that launches ask for it

template <int Row, Element E>
ForwardKernel forward_entry() {
  constexpr Kernel kConfig = kernel_of(kForward[Row], E);
  return {kConfig, kNoKernel<kConfig>, kSomeSmem};
}

template <BackwardConfig kMain>
BackwardKernel no_backward_kernel() {
  constexpr BackwardConfig kRows = kMain.of_rows(), kRowsBefore = kMain.of_rows_before();
  BackwardKernel kernel{.config = kMain,
                        .preprocess = kNoKernel<kRowsBefore, Part::kPreprocess>,
                        .gated_preprocess = kNoKernel<kRowsBefore, Part::kGatedPreprocess>,
                        .main = kNoKernel<kMain>,
                        .postprocess = kNoKernel<kRows, Part::kPostprocess>,
                        .smem_bytes = kSomeSmem,
                        .main_deterministic = kNoKernel<kMain.deterministic()>};
  if constexpr (kMain.can_split_steps()) {
    kernel.splits = {kMain.with_step_splits(), kNoKernel<kMain.with_step_splits()>, kSomeSmem,
                     kNoKernel<kRows.for_dk_rows(), Part::kPostprocess>,
                     kNoKernel<kRows.for_dv_rows(), Part::kPostprocess>};
  }
  if constexpr (kMain.can_take_short_sequences()) {
    kernel.short_sequences = kNoKernel<kMain.for_short_sequences(), Part::kShortSequences>;
    kernel.packed_sequences = kNoKernel<kMain.for_short_sequences(), Part::kPackedSequences>;
    kernel.short_smem_bytes = kSomeSmem;
  }
  return kernel;
}

template <int Row, Element E>
BackwardKernel backward_entry() {
  return no_backward_kernel<kernel_of(kBackward[Row], E)>();
}

}  // namespace fa3::hopper
