// SPDX-License-Identifier: Apache-2.0
// The gate of rows that a kernel combines itself (combine_last.cuh, decode/).
#pragma once

#include "engine/hopper/combine/combine_last.cuh"
#include "engine/hopper/combine/gated_row.cuh"

namespace fa3::hopper {

template <Kernel C>
requires(C.gated()) struct CombinedGate<C> {
  static __device__ __forceinline__ GatedRow of(const ForwardParams& params) {
    return {params.outputs.gate};
  }
};

}  // namespace fa3::hopper
