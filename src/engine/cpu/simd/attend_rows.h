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
// Up to here elements are widened every time they are used; for more rows, once per chunk.
constexpr int64_t kInPlaceRows = 2;

// Rows in memory, and the distance in bytes to those that will be needed next (0: none will).
template <class E>
struct StreamedRows {
  const E* data;
  int64_t stride;
  int64_t ahead;

  FA3_INLINE void prefetch(const E* element, int64_t ahead) {
    __builtin_prefetch(reinterpret_cast<const char*>(element) + ahead, 0, 2);
  }
};

template <class E>
FA3_INLINE StreamedRows<float> widen(StreamedRows<E> rows, int64_t num_rows, int64_t dim,
                                     float* buffer) {
  const int64_t stride = (dim + kWidth - 1) / kWidth * kWidth;
  for (int64_t r = 0; r < num_rows; ++r) {
    const E* row = rows.data + r * rows.stride;
    for (int64_t c = 0; c < dim; c += kWidth) {
      StreamedRows<E>::prefetch(row + c, rows.ahead);
      store(buffer + r * stride + c, load_first(row + c, dim - c));
    }
  }
  return {buffer, stride, 0};
}

// scores[i] = q . keys[i] for kWidth keys, of which `count` exist (the last one stands in for more).
template <class E>
FA3_INLINE void dot_keys(const float* q, StreamedRows<E> keys, int64_t count, int64_t dim,
                         float* scores) {
  const E* rows[kWidth];
  V acc[kWidth];
  FA3_UNROLL
  for (int i = 0; i < kWidth; ++i) {
    rows[i] = keys.data + (i < count ? i : count - 1) * keys.stride;
    acc[i] = V{};
  }
  for (int64_t c = 0; c < dim; c += kWidth) {
    const V q_vector = load(q + c);
    FA3_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      StreamedRows<E>::prefetch(rows[i] + c, keys.ahead);
      acc[i] += q_vector * load(rows[i] + c);
    }
  }
  store(scores, sums_of_rows(acc));
}

// o[0, C vectors) += sum_i p[i] * values[i].
template <int C, class E>
FA3_INLINE void add_weighted_values(const float* p, StreamedRows<E> values, int64_t num_keys,
                                    float* o) {
  V acc[C];
  FA3_UNROLL
  for (int j = 0; j < C; ++j) acc[j] = load(o + j * kWidth);
  for (int64_t i = 0; i < num_keys; ++i) {
    const V weight = broadcast_from(p + i);
    FA3_UNROLL
    for (int j = 0; j < C; ++j) {
      const E* element = values.data + i * values.stride + j * kWidth;
      StreamedRows<E>::prefetch(element, values.ahead);
      acc[j] += weight * load(element);
    }
  }
  FA3_UNROLL
  for (int j = 0; j < C; ++j) store(o + j * kWidth, acc[j]);
}

template <class E>
FA3_INLINE void add_values(const float* p, StreamedRows<E> values, int64_t num_keys, int64_t dim,
                           float* o) {
  int64_t c = 0;
  const auto from_column = [&] {
    return StreamedRows<E>{values.data + c, values.stride, values.ahead};
  };
  for (; c + 8 * kWidth <= dim; c += 8 * kWidth) {
    add_weighted_values<8>(p, from_column(), num_keys, o + c);
  }
  for (; c + 4 * kWidth <= dim; c += 4 * kWidth) {
    add_weighted_values<4>(p, from_column(), num_keys, o + c);
  }
  for (; c < dim; c += kWidth) add_weighted_values<1>(p, from_column(), num_keys, o + c);
}

// All rows against the keys [begin, end) of the sequence, at most kChunk of them. Rows of keys and
// values are whole vectors here.
template <class E>
FA3_INLINE void attend_chunk(const BlockJob& job, StreamedRows<E> keys, StreamedRows<E> values,
                             int64_t begin, int64_t end) {
  const int64_t count = end - begin;
  const Panels panels = {0, (count + kPanel - 1) / kPanel * kPanel};
  for (int64_t r = 0; r < job.num_rows; ++r) {
    const float* q = job.buffers.q + r * packed_q_stride(job);
    float* scores = job.buffers.scores;
    for (int64_t i = 0; i < panels.end; i += kWidth) {
      if (i < count) {
        dot_keys(q, StreamedRows<E>{keys.data + i * keys.stride, keys.stride, keys.ahead},
                 count - i, job.head_dim, scores + i);
      } else {
        store(scores + i, V{});
      }
    }
    RowGroup row = {};
    row.row_keys = job.row_keys + r;
    row.o = job.result.o + r * job.result.columns;
    row.ref = job.result.ref + r;
    row.sum_lanes = job.buffers.sum_lanes + r * kWidth;
    softmax_row<Floats<float>>(job, row, 0, begin, panels);
    add_values(job.buffers.p, values, count, job.head_dim_v, row.o);
    keys.ahead = values.ahead = 0;  // the first row has asked for them
  }
}

template <class T>
static void attend_rows(const BlockJob& job) {
  constexpr int64_t kBytes = sizeof(T);
  const int64_t visible_end = job.row_keys[job.num_rows - 1].end;
  const bool whole_vectors = job.head_dim % kWidth == 0 && job.head_dim_v % kWidth == 0;
  const bool in_place = whole_vectors && (kBytes == sizeof(float) || job.num_rows <= kInPlaceRows);
  pack_queries<Floats<T>>(job);
  clear_result(job);
  for (int64_t begin = job.row_keys[0].begin; begin < visible_end; begin += kChunk) {
    const int64_t end = smaller(begin + kChunk, visible_end);
    const int64_t ahead = end + kChunk <= visible_end ? kChunk * kBytes : 0;
    const StreamedRows<T> keys = {static_cast<const T*>(job.k) + begin * job.k_row_stride,
                                  job.k_row_stride, ahead * job.k_row_stride};
    const StreamedRows<T> values = {static_cast<const T*>(job.v) + begin * job.v_row_stride,
                                    job.v_row_stride, ahead * job.v_row_stride};
    if (in_place) {
      attend_chunk(job, keys, values, begin, end);
    } else {
      attend_chunk(job, widen(keys, end - begin, job.head_dim, job.buffers.k),
                   widen(values, end - begin, job.head_dim_v, job.buffers.v), begin, end);
    }
  }
  add_up_sums(job);
}

}  // namespace fa3::cpu::FA3_ISA
