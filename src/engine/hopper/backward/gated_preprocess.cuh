// SPDX-License-Identifier: Apache-2.0
// The preprocess of a backward with an output gate: what the one without does, in one pass over the
// same rows of dO and O with the gate's chain rule (cuda/backward/gate_gradient.cuh). Rows past a
// sequence's used ones have a gate gradient of 0, as their dQ.
#pragma once

#include "engine/cuda/backward/gate_gradient.cuh"
#include "engine/hopper/backward/preprocess.cuh"

namespace fa3::hopper {

template <BackwardConfig C>
__global__ void __launch_bounds__(kPreprocessThreads)
    gated_preprocess_kernel(const __grid_constant__ GatedPreprocessParams p) {
  ptx::griddepcontrol_launch_dependents();
  const RowTile tile = row_tile<C>(p.tiles, gridDim.x - 1 - blockIdx.x);
  if (C.general() && tile.block < 0) return;
  constexpr int kLanes = lanes_per_row(C.shape.head_dim_v);
  constexpr int kRowsAtOnce = kPreprocessThreads / kLanes;
  constexpr int kPasses = C.shape.block_m / kRowsAtOnce;
  static_assert(C.shape.block_m % kRowsAtOnce == 0);
  const int lane = int(threadIdx.x) % kLanes, column = lane * kVectorColumns;
  const int first = int(threadIdx.x) / kLanes;
  const RowTensor &o = p.rows.o, &d_o = p.rows.d_o;
  const bool has_column = column < o.columns;
  const auto row_of = [&](int i) { return tile.first_row + first + i * kRowsAtOnce; };

  uint4 values[kPasses], gradients[kPasses];
  GateVector logits[kPasses];
  RowStatistics statistics[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int row = row_of(i);
    const bool exists = row < tile.used && has_column;
    values[i] = load_vector(o, tile.offset(o.strides, row) + column, exists);
    gradients[i] = load_vector(d_o, tile.offset(d_o.strides, row) + column, exists);
    if (exists) logits[i].load(p.gate, tile.offset(p.gate.gate.logits.strides, row), column);
    if (row < tile.used && lane == 0) statistics[i].load(p.rows.lse, p.rows.d_lse, tile, row);
  }
  clear_sums<C>(p.scratch, tile);
  float of_sink = 0.0f;
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int row = row_of(i), block_row = first + i * kRowsAtOnce;
    float product = dot<C.element>(values[i], gradients[i]);
#pragma unroll
    for (int distance = kLanes / 2; distance > 0; distance /= 2) {
      product += __shfl_xor_sync(0xffffffff, product, distance);
    }
    if (lane == 0) {
      p.scratch.lse_log2[tile.block * C.shape.block_m + block_row] = statistics[i].lse_log2();
      p.scratch.delta[tile.block * C.shape.block_m + block_row] = statistics[i].delta(product);
      if (C.general() && p.sink) of_sink += statistics[i].of_sink(p.sink[tile.head], product);
    }
    float x[kVectorColumns], d_gate[kVectorColumns];
    logits[i].logits(p.gate, x);
    apply_gate<C.element>(x, values[i], gradients[i], d_gate);
    if (row < tile.used && has_column) {
      const int64_t at = tile.offset(p.gate.d_a.strides, row) + column;
      *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.gate.d_a.data) + at) = gradients[i];
    }
    if (row >= tile.owned || p.gate.d_gate.data == nullptr) continue;
    const int64_t at = tile.offset(p.gate.d_gate.strides, row);
    if (p.gate.gate.kind == Gate::kRows) {
      const float of_row = row < tile.used ? product * logistic(-x[0]) : 0.0f;
      if (lane == 0) store_gate_number(p.gate.d_gate.data, at, p.gate.gate.type, of_row);
    } else if (has_column) {
      store_gate_vector(p.gate, at + column, d_gate);
    }
  }
  if (C.general() && p.sink) {
    of_sink = block_sum<kPreprocessThreads>(of_sink);
    if (threadIdx.x == 0) p.sink_sums[tile.block] = of_sink;
  }
}

}  // namespace fa3::hopper
