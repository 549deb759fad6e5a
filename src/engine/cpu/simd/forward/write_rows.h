// SPDX-License-Identifier: Apache-2.0
//
// Merges the parts of each row (often only one), adds the sink, normalises, and writes O and LSE:
//   o = sum_i 2^(ref_i - m) o_i / l,   l = sum_i 2^(ref_i - m) divisor_i + 2^(sink - m),
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
};

FA3_INLINE float* part_of(float* first, const WriteJob& job, int64_t part) {
  return first + part * job.part_floats;
}

// Replaces the row's references by what each part counts relative to the common one.
FA3_INLINE RowTotal total_of_row(const WriteJob& job, int64_t r, float sink) {
  constexpr double kDoubleLog2E = 1.44269504088896340736;
  const double sink_log2 = sink * kDoubleLog2E;
  RowTotal total = {.max = sink_log2, .sum = 0.0f, .divisor = 0.0f};
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
  if (sink_log2 != -kInfinity) {
    const bool rules = sink_log2 == total.max;  // also if it is infinite
    const float weight = rules ? 1.0f : __builtin_exp2f(static_cast<float>(sink_log2 - total.max));
    total.sum += weight;
    total.divisor += weight;
  }
  return total;
}

template <class Out>
FA3_INLINE void write_o(const WriteJob& job, int64_t r, float divisor, Out* o) {
  const float inverse = divisor == 0.0f ? 0.0f : job.scale / divisor;
  for (int64_t c = 0; c < job.head_dim_v; c += kWidth) {
    V value = {};
    for (int64_t i = 0; i < job.num_parts; ++i) {
      const float weight = *part_of(job.parts.ref + r, job, i);
      value += load(part_of(job.parts.o + r * job.parts.columns + c, job, i)) * (weight * inverse);
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
    const RowTotal total = total_of_row(job, r, job.sink == nullptr ? -kInfinity : job.sink[head]);
    write_o(job, r, total.divisor,
            static_cast<Out*>(job.o) + position * job.o_row_stride + head * job.o_head_stride);
    if (job.lse == nullptr) continue;
    job.lse[position * job.lse_row_stride + head * job.lse_head_stride] =
        total.sum == 0.0f ? -kInfinity
                          : static_cast<float>(total.max * kLn2 + __builtin_logf(total.sum));
  }
}

}  // namespace fa3::cpu::FA3_ISA
