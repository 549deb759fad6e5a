// SPDX-License-Identifier: Apache-2.0
// The preprocess of a backward with an output gate: what the one without does, in one pass over the
// same rows of dO and O with the gate's chain rule (cuda/backward/gate_gradient.cuh). The main
// kernel takes dA for dO.
#pragma once

#include "engine/ampere/backward/preprocess.cuh"
#include "engine/cuda/backward/gate_gradient.cuh"

namespace fa3::ampere {

// The way back from load_row_vector().
__device__ __forceinline__ void store_row_vector(const RowTensor& t, int64_t offset, int count,
                                                 bool whole_vectors, const uint4& vector) {
  uint16_t* const to = static_cast<uint16_t*>(t.data) + offset;
  if (whole_vectors) {
    if (count > 0) *reinterpret_cast<uint4*>(to) = vector;
    return;
  }
  const uint32_t words[] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < kVectorColumns; ++i) {
    if (i < count) to[i] = uint16_t(words[i / 2] >> (16 * (i % 2)));
  }
}

// What the gate makes of 8 columns of a row of O and dO. `product`: rowsum(dO O).
template <Element E>
struct RowGate {
  const GatedPreprocessParams& p;
  const RowBlock& rows;
  int column;

  __device__ __forceinline__ void apply(int row, const uint4& o, uint4 d_o, float product) const {
    const GateRows& g = p.gate;
    const int count = min(p.o.columns - column, kVectorColumns);
    const bool per_row = g.gate.kind == Gate::kRows, used = row < rows.used && count > 0;
    GateVector vector;
    if (used) vector.load(g, rows.offset(g.gate.logits.strides, row), column, count);
    float logits[kVectorColumns], d_gate[kVectorColumns];
    vector.logits(g, logits);
    apply_gate<E>(logits, o, d_o, d_gate);
    if (used) {
      store_row_vector(g.d_a, rows.offset(g.d_a.strides, row) + column, count, g.in_vectors, d_o);
    }
    if (row >= rows.owned || g.d_gate.data == nullptr) return;
    const int64_t at = rows.offset(g.d_gate.strides, row);
    if (!per_row) {
      if (count > 0) store_gate_vector(g, at + column, d_gate, count);
    } else if (column == 0) {
      const float of_row = used ? product * logistic(-logits[0]) : 0.0f;
      store_gate_number(g.d_gate.data, at, g.gate.type, of_row);
    }
  }
};

template <Element E, int Lanes>
__global__ void __launch_bounds__(kPreprocessThreads)
    gated_preprocess_kernel(const __grid_constant__ GatedPreprocessParams p) {
  preprocess<E, Lanes>(p, [&](const RowBlock& rows, int column, int row, const uint4& o,
                              const uint4& d_o, float product) {
    RowGate<E>{p, rows, column}.apply(row, o, d_o, product);
  });
}

}  // namespace fa3::ampere
