// SPDX-License-Identifier: Apache-2.0
//
// Merges the parts of each row (often only one), adds the sink, normalises, and writes O and LSE:
//   o = sum_i 2^(ref_i - m) o_i / l,   l = sum_i 2^(ref_i - m) sum_i + 2^(sink - m),   m = max ref_i.
// Parts are added in their order, so the result is repeatable. Next: kernels.h.
#pragma once

#include "engine/cpu/simd/softmax.h"

namespace fa3::cpu::FA3_ISA {

constexpr float kLn2 = 0.693147181f;

// What all parts of one row add up to, apart from o.
struct RowTotal {
  float max;  // the common reference, 0 if the row saw nothing
  float sum;
  float sink_log2;
};

FA3_INLINE const float* part_of(const float* first, const WriteJob& job, int64_t part) {
  return first + part * job.part_floats;
}

FA3_INLINE RowTotal total_of_row(const WriteJob& job, int64_t r, float sink) {
  RowTotal total = {.max = sink * kLog2E, .sum = 0.0f, .sink_log2 = sink * kLog2E};
  for (int64_t i = 0; i < job.num_parts; ++i) {
    const float ref = *part_of(job.parts.ref + r, job, i);
    if (ref > total.max) total.max = ref;
  }
  if (total.max == -kInfinity) total.max = 0.0f;
  for (int64_t i = 0; i < job.num_parts; ++i) {
    const float weight = __builtin_exp2f(*part_of(job.parts.ref + r, job, i) - total.max);
    total.sum += weight * *part_of(job.parts.sum + r, job, i);
  }
  total.sum += __builtin_exp2f(total.sink_log2 - total.max);
  return total;
}

template <class Out>
FA3_INLINE void write_o(const WriteJob& job, int64_t r, const RowTotal& total, Out* o) {
  const float inverse = total.sum == 0.0f ? 0.0f : 1.0f / total.sum;
  for (int64_t c = 0; c < job.head_dim_v; c += kWidth) {
    V value = {};
    for (int64_t i = 0; i < job.num_parts; ++i) {
      const float weight = __builtin_exp2f(*part_of(job.parts.ref + r, job, i) - total.max);
      value += load(part_of(job.parts.o + r * job.parts.columns + c, job, i)) * (weight * inverse);
    }
    store_first(o + c, value, job.head_dim_v - c);
  }
}

template <class Out>
static void write_rows(const WriteJob& job) {
  for (int64_t r = 0; r < job.num_rows; ++r) {
    const int64_t position = (job.first_row + r) / job.group;
    const int64_t head = (job.first_row + r) % job.group;
    const RowTotal total = total_of_row(job, r, job.sink == nullptr ? -kInfinity : job.sink[head]);
    write_o(job, r, total,
            static_cast<Out*>(job.o) + position * job.o_row_stride + head * job.o_head_stride);
    if (job.lse == nullptr) continue;
    job.lse[position * job.lse_row_stride + head * job.lse_head_stride] =
        total.sum == 0.0f ? -kInfinity : total.max * kLn2 + __builtin_logf(total.sum);
  }
}

}  // namespace fa3::cpu::FA3_ISA
