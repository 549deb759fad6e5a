// SPDX-License-Identifier: Apache-2.0
// The output gate: rows of O times the logistic function of the gate's logits, in float32, before
// they are rounded. Of whole tiles in their fragments, as what is left to do to O (store_rows());
// of combined rows four columns a lane.
#pragma once

#include <type_traits>

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/unpack.cuh"
#include "engine/cuda/softmax/constants.h"
#include "engine/cuda/softmax/outputs.h"

namespace fa3::cuda {

__device__ __forceinline__ float logistic(float x) {
  return rcp(1.0f + ex2(-kLog2E * x));
}

__device__ __forceinline__ float load_logit(const void* logits, int64_t at, GateType type) {
  if (type == GateType::kFp32) return __ldg(static_cast<const float*>(logits) + at);
  const uint32_t bits = __ldg(static_cast<const uint16_t*>(logits) + at);
  float low, high;
  if (type == GateType::kBf16) {
    unpack_pair<Element::kBf16>(bits, low, high);
  } else {
    unpack_pair<Element::kFp16>(bits, low, high);
  }
  return low;
}

// The factor of a column of a row of O.
__device__ __forceinline__ float gate_factor(const GateParams& gate, int64_t row, int column) {
  if (column >= gate.logits.columns && gate.kind != Gate::kRows) return 0.0f;
  const int64_t at = gate.kind == Gate::kRows ? row : row + column;
  return logistic(load_logit(gate.logits.data, at, gate.type));
}

// A combined column of a row of O. A row that sees no key stays 0, whatever its logits are.
__device__ __forceinline__ float gated_number(float value, const GateParams& gate, int64_t row,
                                              int column) {
  return value == 0.0f ? value : value * gate_factor(gate, row, column);
}

// How a logit lies in memory.
template <GateType kType>
using GateNumber = std::conditional_t<kType == GateType::kFp32, float, uint16_t>;

// Two neighbours' logits, from a word of 16-bit numbers.
template <GateType kType>
__device__ __forceinline__ float2 logits_of(uint32_t word) {
  constexpr Element kElement = kType == GateType::kBf16 ? Element::kBf16 : Element::kFp16;
  float2 both;
  unpack_pair<kElement>(word, both.x, both.y);
  return both;
}
// From memory, where they lie at a multiple of their size.
template <GateType kType>
__device__ __forceinline__ float2 load_logits(const GateNumber<kType>* pair) {
  if constexpr (kType == GateType::kFp32) {
    return __ldg(reinterpret_cast<const float2*>(pair));
  } else {
    return logits_of<kType>(__ldg(reinterpret_cast<const uint32_t*>(pair)));
  }
}

// A thread's pairs of 16-bit logits, loaded while products still run; or none.
template <int kPairs>
struct EarlyLogits {
  static constexpr int kCount = kPairs;
  uint32_t pairs[kPairs];

  __device__ __forceinline__ void load(const GateParams& gate, PackGqa pack,
                                       const QueryRows& queries, int first_row) {
    const LaneRows rows(pack, queries, first_row, thread_in_block());
    const int lane_column = fragment_lane_column(int(thread_in_block()));
    const uint16_t* from[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      from[r] = static_cast<const uint16_t*>(gate.logits.data) + lane_column +
                gate.logits.strides.offset(queries.batch, rows.head[r], rows.row[r]);
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int r = fragment_row_index(2 * i), column = fragment_column(2 * i);
      pairs[i] = load_global_word(rows.exists[r] && column < gate.logits.columns, from[r] + column);
    }
  }
};
template <>
struct EarlyLogits<0> {
  static constexpr int kCount = 0;
  __device__ __forceinline__ void load(const GateParams&, PackGqa, const QueryRows&, int) {}
};

// Finishes a warp's rows of O: as V's encoding asks, and by the gate.
template <Gate kGate, GateType kType, class Values, class Early>
struct GatedValues {
  Values values;
  const GateParams& gate;
  PackGqa pack;
  const QueryRows& queries;
  int first_row;
  const Early& early;

  template <int Count>
  __device__ __forceinline__ void restore(float (&output)[Count],
                                          const float (&sum)[kRowsPerThread]) const {
    values.restore(output, sum);
    multiply(output);
  }
  template <int Count>
  __device__ __forceinline__ void restore_normalised(float (&output)[Count],
                                                     float (&factor)[kRowsPerThread]) const {
    values.restore_normalised(output, factor);
    multiply(output);
  }

 private:
  template <int Count>
  __device__ __forceinline__ void multiply(float (&output)[Count]) const {
    const LaneRows rows(pack, queries, first_row, thread_in_block());
    const GateNumber<kType>* from[kRowsPerThread];
#pragma unroll
    for (int r = 0; r < kRowsPerThread; ++r) {
      from[r] = static_cast<const GateNumber<kType>*>(gate.logits.data) +
                gate.logits.strides.offset(queries.batch, rows.head[r], rows.row[r]);
    }
    if constexpr (kGate == Gate::kRows) {
      float factor[kRowsPerThread];
#pragma unroll
      for (int r = 0; r < kRowsPerThread; ++r) {
        factor[r] = rows.exists[r] ? logistic(load_logit(from[r], 0, kType)) : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < Count; ++i) output[i] *= factor[fragment_row_index(i)];
    } else {
      const int lane_column = fragment_lane_column(int(thread_in_block()));
      from[0] += lane_column, from[1] += lane_column;
#pragma unroll
      for (int i = 0; i < Count; i += 2) {
        const int r = fragment_row_index(i), column = fragment_column(i);
        float2 logits{};
        if constexpr (Early::kCount > 0) {
          logits = logits_of<kType>(early.pairs[i / 2]);
        } else if constexpr (kGate == Gate::kPairs) {
          if (rows.exists[r] && column < gate.logits.columns) {
            logits = load_logits<kType>(from[r] + column);
          }
        } else {
          const int left = rows.exists[r] ? gate.logits.columns - lane_column - column : 0;
          if (left > 0) logits.x = load_logit(from[r], column, kType);
          if (left > 1) logits.y = load_logit(from[r], column + 1, kType);
        }
        output[i] *= logistic(logits.x);
        output[i + 1] *= logistic(logits.y);
      }
    }
  }
};

// Asks for the logits of a warp's rows long before GatedValues loads them, so that these come from
// the L2 cache. A line of each lane's row and half of it at a time.
template <GateType kType>
__device__ __forceinline__ void prefetch_gate(const GateParams& gate, PackGqa pack,
                                              const QueryRows& queries, int first_row) {
  constexpr int kLine = 128 / bytes_of(kType);
  const int lane = int(thread_in_block() % kWarpSize), packed_row = first_row + lane / 2;
  if (pack.query(packed_row) >= queries.count) return;
  const int64_t at = gate.logits.strides.offset(queries.batch, pack.head(queries.pack, packed_row),
                                                queries.begin + pack.query(packed_row));
  const char* const row = static_cast<const char*>(gate.logits.data) + at * bytes_of(kType);
#pragma unroll 1
  for (int column = lane % 2 * kLine; column < gate.logits.columns; column += 2 * kLine) {
    prefetch_to_l2(row + int64_t{column} * bytes_of(kType));
  }
}

}  // namespace fa3::cuda
