// SPDX-License-Identifier: Apache-2.0
// Included by the generated source files, each of which instantiates one variant of ablation.h.
#pragma once

#include "engine/hopper/ablation/ablation.h"
#include "engine/hopper/ablation/plain_kernel.cuh"
#include "engine/hopper/forward_kernel.cuh"

namespace fa3::hopper {

template <int Variant>
ForwardKernel ablation_entry() {
  constexpr ForwardConfig kConfig = kAblation[Variant].config;
  if constexpr (kAblation[Variant].loop == Loop::kLibrary) {
    return {kConfig, reinterpret_cast<const void*>(&forward_kernel<kConfig>),
            smem_bytes<kConfig>()};
  } else {
    return {kConfig, reinterpret_cast<const void*>(&plain_kernel<kConfig>),
            plain_smem_bytes<kConfig>()};
  }
}

}  // namespace fa3::hopper
