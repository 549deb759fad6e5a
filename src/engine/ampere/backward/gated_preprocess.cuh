// SPDX-License-Identifier: Apache-2.0
// The preprocess of a backward with an output gate: what the one without does, in one pass over the
// same rows of dO and O with the gate's chain rule (cuda/backward/gate_gradient.cuh). Its grid has
// the rows of a packed tensor that no sequence owns too: the gate has a gradient there, of 0.
#pragma once

#include "engine/ampere/backward/preprocess.cuh"
#include "engine/ampere/backward/store_rows.cuh"
#include "engine/cuda/backward/gate_gradient.cuh"

namespace fa3::ampere {

// The chain rule for 8 columns of a used row of O and dO. `product`: rowsum(dO O). Called: the code
// is long, and passes are unrolled.
template <Element E>
__device__ __noinline__ void gate_vector(const GatedPreprocessParams& p, const RowBlock& rows,
                                         int row, int column, uint4 o, uint4 d_o, float product) {
  const GateRows& g = p.gate;
  const int count = p.o.columns - column;
  if (row >= rows.used || count <= 0) return;
  GateVector vector;
  vector.load(g, rows.offset(g.gate.logits.strides, row), column, count);
  float logits[kVectorColumns], d_gate[kVectorColumns];
  vector.logits(g, logits);
  apply_gate<E>(logits, o, d_o, d_gate);
  store_vector(g.d_a.at(rows.batch, rows.head, rows.begin + row) + column, count,
               {d_o.x, d_o.y, d_o.z, d_o.w}, p.o.columns % kVectorColumns == 0);
  if (g.d_gate.data == nullptr) return;
  const int64_t at = rows.offset(g.d_gate.strides, row);
  if (g.gate.kind != Gate::kRows) {
    store_gate_vector(g, at + column, d_gate, count);
  } else if (column == 0) {
    store_gate_number(g.d_gate.data, at, g.gate.type, product * logistic(-logits[0]));
  }
}

// Zeros behind the used rows, `blocks` blocks for all of a sequence's rows.
__device__ __forceinline__ void clear_unused_gates(const GateRows& g, const RowBlock& rows,
                                                   int blocks) {
  if (g.d_gate.data == nullptr) return;
  const int words = bytes_of(g.gate.type) / 2;
  const Strides& s = g.d_gate.strides;
  const RowTensor in_words{
      g.d_gate.data, {s.batch * words, s.head * words, s.row * words}, g.d_gate.columns * words};
  for (int first = rows.block * kPreprocessRows; first < rows.owned;
       first += blocks * kPreprocessRows) {
    clear_rows<kPreprocessThreads>(in_words, rows, max(first, rows.used),
                                   min(first + kPreprocessRows, rows.owned));
  }
}

template <Element E, int Lanes>
__global__ void __launch_bounds__(kPreprocessThreads)
    gated_preprocess_kernel(const __grid_constant__ GatedPreprocessParams p) {
  const int number = preprocess_number();
  const RowBlock rows = RowBlock::of(p.grid, number);
  preprocess<E, Lanes>(p, number, rows,
                       [&](int row, int column, const uint4& o, const uint4& d_o, float product) {
                         gate_vector<E>(p, rows, row, column, o, d_o, product);
                       });
  clear_unused_gates(p.gate, rows, p.grid.blocks);
}

}  // namespace fa3::ampere
