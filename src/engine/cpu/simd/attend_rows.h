// SPDX-License-Identifier: Apache-2.0
//
// Attention of a few query rows (decoding): the time goes into reading keys and values from memory
// once, so they are read where they are, and the arithmetic only has to keep up. Same softmax step,
// same results format as attend_block.h. Next: write_rows.h.
#pragma once

#include "engine/cpu/simd/attend_block.h"

namespace fa3::cpu::FA3_ISA {

// Keys between two softmax steps, and how far ahead memory is asked for.
constexpr int64_t kChunk = 64;

// A chunk of rows as floats: in place where they are that already, else converted to `buffer`.
struct FloatRows {
  const float* data;
  int64_t stride;
};

template <class T>
FA3_INLINE FloatRows float_rows(const T* rows, int64_t row_stride, int64_t num_rows, int64_t dim,
                                float* buffer) {
  const int64_t stride = (dim + kWidth - 1) / kWidth * kWidth;
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t c = 0; c < dim; c += kWidth) {
      store(buffer + r * stride + c, load_first(rows + r * row_stride + c, dim - c));
    }
  }
  return {buffer, stride};
}

FA3_INLINE FloatRows float_rows(const float* rows, int64_t row_stride, int64_t num_rows,
                                int64_t dim, float* buffer) {
  if (dim % kWidth == 0) return {rows, row_stride};
  return float_rows<float>(rows, row_stride, num_rows, dim, buffer);
}

// scores[i] = q . keys[i] for kWidth keys, of which `count` exist (the last one stands in for more).
FA3_INLINE void dot_keys(const float* q, FloatRows keys, int64_t count, int64_t dim,
                         float* scores) {
  const float* rows[kWidth];
  V acc[kWidth];
  FA3_UNROLL
  for (int i = 0; i < kWidth; ++i) {
    rows[i] = keys.data + (i < count ? i : count - 1) * keys.stride;
    acc[i] = V{};
  }
  for (int64_t c = 0; c < dim; c += kWidth) {
    const V q_vector = load(q + c);
    FA3_UNROLL
    for (int i = 0; i < kWidth; ++i) acc[i] += q_vector * load(rows[i] + c);
  }
  store(scores, sums_of_rows(acc));
}

// o[0, C vectors) += sum_i p[i] * values[i].
template <int C>
FA3_INLINE void add_weighted_values(const float* p, const float* values, int64_t stride,
                                    int64_t num_keys, float* o) {
  V acc[C];
  FA3_UNROLL
  for (int j = 0; j < C; ++j) acc[j] = load(o + j * kWidth);
  for (int64_t i = 0; i < num_keys; ++i) {
    const V weight = broadcast_from(p + i);
    FA3_UNROLL
    for (int j = 0; j < C; ++j) acc[j] += weight * load(values + i * stride + j * kWidth);
  }
  FA3_UNROLL
  for (int j = 0; j < C; ++j) store(o + j * kWidth, acc[j]);
}

FA3_INLINE void add_values(const float* p, FloatRows values, int64_t num_keys, int64_t dim,
                           float* o) {
  const int64_t columns = (dim + kWidth - 1) / kWidth * kWidth;
  int64_t c = 0;
  for (; c + 8 * kWidth <= columns; c += 8 * kWidth) {
    add_weighted_values<8>(p, values.data + c, values.stride, num_keys, o + c);
  }
  for (; c + 4 * kWidth <= columns; c += 4 * kWidth) {
    add_weighted_values<4>(p, values.data + c, values.stride, num_keys, o + c);
  }
  for (; c < columns; c += kWidth) {
    add_weighted_values<1>(p, values.data + c, values.stride, num_keys, o + c);
  }
}

// All rows against the keys [begin, end) of the sequence, at most kChunk of them.
template <class T>
FA3_INLINE void attend_chunk(const BlockJob& job, const T* k, const T* v, int64_t begin,
                             int64_t end) {
  const int64_t count = end - begin;
  const FloatRows keys = float_rows(k, job.k_row_stride, count, job.head_dim, job.buffers.k);
  const FloatRows values = float_rows(v, job.v_row_stride, count, job.head_dim_v, job.buffers.v);
  const Panels panels = {0, (count + kPanel - 1) / kPanel * kPanel};
  for (int64_t r = 0; r < job.num_rows; ++r) {
    const float* q = job.buffers.q + r * packed_q_stride(job);
    float* scores = job.buffers.scores;
    for (int64_t i = 0; i < panels.end; i += kWidth) {
      if (i < count) {
        dot_keys(q, {keys.data + i * keys.stride, keys.stride}, count - i, job.head_dim,
                 scores + i);
      } else {
        store(scores + i, V{});
      }
    }
    RowGroup row = {};
    row.row_keys = job.row_keys + r;
    row.o = job.result.o + r * job.result.columns;
    row.ref = job.result.ref + r;
    row.sum_lanes = job.buffers.sum_lanes + r * kWidth;
    softmax_row<Floats<T>>(job, row, 0, begin, panels);
    add_values(job.buffers.p, values, count, job.head_dim_v, row.o);
  }
}

template <class T>
static void attend_rows(const BlockJob& job) {
  const auto* k = static_cast<const T*>(job.k);
  const auto* v = static_cast<const T*>(job.v);
  const int64_t visible_end = job.row_keys[job.num_rows - 1].end;
  pack_queries<Floats<T>>(job);
  clear_result(job);
  for (int64_t begin = job.row_keys[0].begin; begin < visible_end; begin += kChunk) {
    const int64_t end = smaller(begin + kChunk, visible_end);
    const int64_t ahead = smaller(end + kChunk, visible_end);
    PrefetchRows next_k = prefetch_rows(k, job.k_row_stride, end, ahead, job.head_dim);
    PrefetchRows next_v = prefetch_rows(v, job.v_row_stride, end, ahead, job.head_dim_v);
    for (int64_t r = end; r < ahead; ++r) {
      PrefetchRows::one(&next_k);
      PrefetchRows::one(&next_v);
    }
    attend_chunk(job, k + begin * job.k_row_stride, v + begin * job.v_row_stride, begin, end);
  }
  add_up_sums(job);
}

}  // namespace fa3::cpu::FA3_ISA
