// SPDX-License-Identifier: Apache-2.0
// What a backward's preprocess is given for an output gate. Next: gate_gradient.cuh.
#pragma once

#include "engine/cuda/softmax/outputs.h"

namespace fa3::cuda {

// An output gate's tensors beside O and dO.
struct GateRows {
  GateParams gate;
  RowTensor d_gate;  // of the gate's type; data null: not wanted
  RowTensor d_a;     // dO times the gate's factors
  bool in_vectors;   // 8 columns of gate and d_gate begin at multiples of 16 bytes

  static GateRows of(const GateParams& gate, const RowTensor& d_gate, const RowTensor& d_a) {
    const auto are_aligned = [&](const RowTensor& t) {
      const auto [batch, head, row] = t.strides;
      const auto bytes = uintptr_t(bytes_of(gate.type));
      return ((reinterpret_cast<uintptr_t>(t.data) | uintptr_t(batch | head | row) * bytes) & 15) ==
             0;
    };
    return {gate, d_gate, d_a,
            d_a.columns % 8 == 0 && are_aligned(gate.logits) && are_aligned(d_gate)};
  }
};

}  // namespace fa3::cuda
