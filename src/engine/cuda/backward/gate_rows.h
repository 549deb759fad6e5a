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
};

}  // namespace fa3::cuda
