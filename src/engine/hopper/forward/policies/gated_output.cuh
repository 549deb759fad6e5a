// SPDX-License-Identifier: Apache-2.0
// A gate multiplies O, once: whole tiles where they are stored, split ones where they are combined.
#pragma once

#include "engine/cuda/softmax/output_gate.cuh"
#include "engine/hopper/forward/policies/outputs.cuh"

namespace fa3::hopper {

template <Kernel C>
requires(C.gated()) struct GateOf<C> {
  template <class Consumer, class Work>
  static __device__ __forceinline__ void begin_tile(const Consumer& c, const Work& work) {
    if (C.outputs.gate == Gate::kRows || C.always_splits() || c.tile.is_end()) return;
    cuda::prefetch_gate<C.outputs.gate_type>(c.params.outputs.gate, c.params.output.pack,
                                             work.queries, c.first_row_of(work));
  }
  template <class Values>
  static __device__ __forceinline__ auto values(const ForwardParams& params,
                                                const cuda::QueryRows& queries, int first_row,
                                                const Values& values) {
    return cuda::GatedValues<C.outputs.gate, C.outputs.gate_type, Values>{
        values, params.outputs.gate, params.output.pack, queries, first_row};
  }
};

}  // namespace fa3::hopper
