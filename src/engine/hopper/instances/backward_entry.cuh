// SPDX-License-Identifier: Apache-2.0
// Included by the generated source of each row of kBackward.
#pragma once

#include "engine/hopper/backward/backward_kernel.cuh"
#include "engine/hopper/backward/gated_preprocess.cuh"
#include "engine/hopper/backward/postprocess.cuh"
#include "engine/hopper/backward/preprocess.cuh"
#include "engine/hopper/backward/short_sequences.cuh"
#include "engine/hopper/instances/backward_entry.h"

namespace fa3::hopper {

template <BackwardConfig kMain>
BackwardKernel backward_kernel_of() {
  constexpr BackwardConfig kRows = kMain.of_rows(), kRowsBefore = kMain.of_rows_before();
  BackwardKernel kernel{kMain,
                        reinterpret_cast<const void*>(&preprocess_kernel<kRowsBefore>),
                        reinterpret_cast<const void*>(&gated_preprocess_kernel<kRowsBefore>),
                        reinterpret_cast<const void*>(&backward_kernel<kMain>),
                        reinterpret_cast<const void*>(&postprocess_kernel<kRows>),
                        backward_smem_bytes<kMain>(),
                        reinterpret_cast<const void*>(&backward_kernel<kMain.deterministic()>)};
  if constexpr (kMain.can_split_steps()) {
    kernel.splits = {
        kMain.with_step_splits(),
        reinterpret_cast<const void*>(&backward_kernel<kMain.with_step_splits()>),
        kernel.smem_bytes,
        reinterpret_cast<const void*>(&postprocess_kernel<kRows.for_dk_rows()>),
        reinterpret_cast<const void*>(&postprocess_kernel<kRows.for_dv_rows()>),
    };
  }
  if constexpr (kMain.can_take_short_sequences()) {
    constexpr BackwardConfig kShort = kMain.for_short_sequences();
    kernel.short_sequences = reinterpret_cast<const void*>(&short_sequences_kernel<kShort, false>);
    kernel.packed_sequences = reinterpret_cast<const void*>(&short_sequences_kernel<kShort, true>);
    kernel.short_smem_bytes = backward_smem_bytes<kShort>();
  }
  return kernel;
}

template <int Row, Element E>
BackwardKernel backward_entry() {
  return backward_kernel_of<kernel_of(kBackward[Row], E)>();
}

}  // namespace fa3::hopper
