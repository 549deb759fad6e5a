// SPDX-License-Identifier: Apache-2.0
//
// Merges the parts of each row (often only one), adds the sink, normalises, and writes O and LSE:
//   o = sum_i 2^(ref_i - m) o_i / l,   l = sum_i 2^(ref_i - m) divisor_i + 2^(sink - m),
// A result over other keys that the call goes on from has the weight 2^(LSE - m), and the others
// together that of their sums, which are not rounded.
// m = max ref_i; the LSE is that of the sums. Parts are added in their order, so the result is
// repeatable. m is a double, because a sink may be as large as a float and is larger in log2 units.
// Next: kernels.h.
#pragma once

#include "engine/cpu/simd/forward/softmax.h"

namespace fa3::cpu::FA3_ISA {

// What all parts of one row add up to, apart from o.
struct RowTotal {
  double max;  // the common reference, 0 if the row saw nothing
  float sum;
  float divisor;
  float of_partial;  // beside the sum: what the result that the call goes on from counts
  bool sees_keys;
};

// A logit that joins a row beside its keys, in log2 units: its weight relative to the reference.
FA3_INLINE float weight_beside(double logit, double max) {
  if (logit == -kInfinity) return 0.0f;
  if (logit == max) return 1.0f;  // also if it is infinite
  return __builtin_exp2f(static_cast<float>(logit - max));
}

FA3_INLINE float* part_of(float* first, const WriteJob& job, int64_t part) {
  return first + part * job.part_floats;
}

// Replaces the row's references by what each part counts relative to the common one. The sink and
// the LSE of what the call goes on from are in natural units.
FA3_INLINE RowTotal total_of_row(const WriteJob& job, int64_t r, float sink, float lse_partial) {
  constexpr double kDoubleLog2E = 1.44269504088896340736;
  const double sink_log2 = sink * kDoubleLog2E, partial_log2 = lse_partial * kDoubleLog2E;
  RowTotal total = {
      .max = sink_log2, .sum = 0.0f, .divisor = 0.0f, .of_partial = 0.0f, .sees_keys = false};
  if (partial_log2 > total.max) total.max = partial_log2;
  for (int64_t i = 0; i < job.num_parts; ++i) {
    const float ref = *part_of(job.parts.ref + r, job, i);
    if (ref > total.max) total.max = ref;
  }
  if (total.max == -kInfinity) total.max = 0.0;
  for (int64_t i = 0; i < job.num_parts; ++i) {
    float& weight = *part_of(job.parts.ref + r, job, i);
    weight = __builtin_exp2f(static_cast<float>(weight - total.max));
    total.sum += weight * *part_of(job.parts.sum + r, job, i);
    total.divisor += weight * *part_of(job.parts.divisor + r, job, i);
  }
  total.sees_keys = total.sum != 0.0f;
  const float of_sink = weight_beside(sink_log2, total.max);
  total.of_partial = weight_beside(partial_log2, total.max);
  total.sum += of_sink;
  total.divisor += of_sink;
  return total;
}

template <class T>
FA3_INLINE V gate_logits(const GateRows& gate, int64_t row, int64_t column, int64_t columns) {
  const T* const logits = static_cast<const T*>(gate.logits) + row;
  if (!gate.per_row) return load_first(logits + column, columns - column);
  return V{} + load_first(logits, 1)[0];
}

// The factors of kWidth columns of O, `row` elements behind the gate's first logit.
FA3_INLINE V gate_factors(const GateRows& gate, int64_t row, int64_t column, int64_t columns) {
  switch (gate.dtype) {
    case 0:
      return sigmoid(gate_logits<float>(gate, row, column, columns));
    case 1:
      return sigmoid(gate_logits<Float16>(gate, row, column, columns));
    default:
      return sigmoid(gate_logits<BFloat16>(gate, row, column, columns));
  }
}

template <class Out>
FA3_INLINE void write_o(const WriteJob& job, int64_t r, const RowTotal& total, const float* partial,
                        int64_t gate_row, Out* o) {
  const bool goes_on = total.of_partial != 0.0f;  // else its o may be anything
  const float of_all = total.sum + total.of_partial;
  float inverse = 0.0f;
  if (total.divisor != 0.0f) {
    // Beside a partial result that outweighs them, the keys' sums are subnormal: only their
    // quotient is in range.
    inverse =
        goes_on ? job.scale * (total.sum / total.divisor) / of_all : job.scale / total.divisor;
  }
  const float of_partial = goes_on ? total.of_partial / of_all : 0.0f;
  for (int64_t c = 0; c < job.head_dim_v; c += kWidth) {
    V value = {};
    for (int64_t i = 0; i < job.num_parts; ++i) {
      const float weight = *part_of(job.parts.ref + r, job, i);
      value += load(part_of(job.parts.o + r * job.parts.columns + c, job, i)) * (weight * inverse);
    }
    if (goes_on) value += load_first(partial + c, job.head_dim_v - c) * of_partial;
    if (job.gate.logits != nullptr && total.sees_keys) {
      value *= gate_factors(job.gate, gate_row, c, job.head_dim_v);
    }
    store_first(o + c, value, job.head_dim_v - c);
  }
}

template <class Out>
static void write_rows(const WriteJob& job) {
  constexpr double kLn2 = 0.693147180559945309417;
  for (int64_t r = 0; r < job.num_rows; ++r) {
    const int64_t position = (job.first_row + r) / job.group;
    const int64_t head = (job.first_row + r) % job.group;
    float lse_partial = -kInfinity;
    const float* o_partial = nullptr;
    if (job.o_partial != nullptr) {
      lse_partial = job.lse_partial[position * job.lse_partial_row_stride +
                                    head * job.lse_partial_head_stride];
      o_partial =
          job.o_partial + position * job.o_partial_row_stride + head * job.o_partial_head_stride;
    }
    const RowTotal total =
        total_of_row(job, r, job.sink == nullptr ? -kInfinity : job.sink[head], lse_partial);
    write_o(job, r, total, o_partial, position * job.gate.row_stride + head * job.gate.head_stride,
            static_cast<Out*>(job.o) + position * job.o_row_stride + head * job.o_head_stride);
    if (job.lse == nullptr) continue;
    const float sum = total.sum + total.of_partial;
    job.lse[position * job.lse_row_stride + head * job.lse_head_stride] =
        sum == 0.0f ? -kInfinity : static_cast<float>(total.max * kLn2 + __builtin_logf(sum));
  }
}

}  // namespace fa3::cpu::FA3_ISA
