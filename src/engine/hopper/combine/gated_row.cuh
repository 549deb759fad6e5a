// SPDX-License-Identifier: Apache-2.0
// The gate of combined rows (combine_row.cuh): it multiplies their columns, not their sums, of
// which the LSE is made.
#pragma once

#include "engine/cuda/softmax/output_gate.cuh"
#include "engine/hopper/combine/combine_row.cuh"

namespace fa3::hopper {

struct GatedRow {
  const GateParams& gate;

  __device__ __forceinline__ void multiply(CombinedSum& total, const RowPlace& place,
                                           int column) const {
    const int64_t row = gate.logits.strides.offset(place.batch, place.head, place.row);
    float4& o = total.columns;
    o = {gated_number(o.x, gate, row, column), gated_number(o.y, gate, row, column + 1),
         gated_number(o.z, gate, row, column + 2), gated_number(o.w, gate, row, column + 3)};
  }
};

}  // namespace fa3::hopper
