// SPDX-License-Identifier: Apache-2.0
// A gate multiplies O, once: whole tiles where they are stored, split ones where they are combined.
#pragma once

#include "engine/cuda/softmax/output_gate.cuh"
#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/forward/policies/outputs.cuh"

namespace fa3::hopper {

// How many pairs of 16-bit logits a thread loads while its tile's last products run: all of them,
// where it has registers for them and for some addresses.
constexpr int early_logits(const Kernel& c) {
  const bool overlaps = c.shape.overlaps && !c.e4m3() && !c.is_stream_k();
  const bool in_words =
      c.outputs.gate == cuda::Gate::kPairs && c.outputs.gate_type != cuda::GateType::kFp32;
  constexpr int kForAddresses = 12;
  const int pairs = c.shape.head_dim_v / 4;
  const int registers = consumer_registers_used(c) + pairs + kForAddresses;
  return overlaps && in_words && registers <= register_budget(c).consumer ? pairs : 0;
}

template <Kernel C>
requires(C.gated()) struct GateOf<C> {
  using Registers = cuda::EarlyLogits<early_logits(C)>;

  template <class Consumer, class Work>
  static __device__ __forceinline__ void begin_tile(const Consumer& c, const Work& work) {
    if (C.outputs.gate == Gate::kRows || C.is_stream_k() || c.tile.is_end()) return;
    cuda::prefetch_gate<C.outputs.gate_type>(c.params.outputs.gate, c.params.output.pack,
                                             work.queries, c.first_row_of(work));
  }
  template <class Consumer>
  static __device__ __forceinline__ void end_tile(const Consumer& c, Registers& early) {
    const auto& work = c.smem.work_tiles[c.stages.previous_work_tile()];
    early.load(c.params.outputs.gate, c.params.output.pack, work.queries, c.first_row_of(work));
  }
  template <class Values>
  static __device__ __forceinline__ auto values(const ForwardParams& params,
                                                const cuda::QueryRows& queries, int first_row,
                                                const Registers& early, const Values& values) {
    return cuda::GatedValues<C.outputs.gate, C.outputs.gate_type, Values, Registers>{
        values, params.outputs.gate, params.output.pack, queries, first_row, early};
  }
};

}  // namespace fa3::hopper
