// SPDX-License-Identifier: Apache-2.0
//
// Attention of a few query rows (decoding): the time goes into reading keys and values from memory
// once, so they are read where they are, and the arithmetic only has to keep up. Same softmax step,
// same results format as attend_block.h. Next: tile_rows.h, write_rows.h.
#pragma once

#include "engine/cpu/simd/forward/attend_block.h"

namespace fa3::cpu::FA3_ISA {

// Keys between two softmax steps, and how far ahead memory is asked for.
constexpr int64_t kChunk = 64;

// Rows of keys or values in memory, and the distance in bytes to those that are needed next.
template <class E>
struct StreamedRows {
  using Element = E;
  const E* data;
  int64_t stride;
  int64_t ahead;

  FA3_INLINE const E* row(const StreamedRows& rows, int64_t i) {
    return rows.data + i * rows.stride;
  }
  FA3_INLINE const void* needed_next(const StreamedRows& rows, int64_t i, int64_t column) {
    return reinterpret_cast<const char*>(row(rows, i) + column) + rows.ahead;
  }
  FA3_INLINE StreamedRows skip_rows(const StreamedRows& rows, int64_t count) {
    return {row(rows, count), rows.stride, rows.ahead};
  }
  FA3_INLINE StreamedRows skip_columns(const StreamedRows& rows, int64_t count) {
    return {rows.data + count, rows.stride, rows.ahead};
  }
};

// Rows in pages: the address of each row, followed by as many addresses of the rows needed next.
template <class E>
struct PagedRows {
  using Element = E;
  const E* const* rows;
  int64_t column;
  int64_t ahead;

  FA3_INLINE const E* row(const PagedRows& rows, int64_t i) { return rows.rows[i] + rows.column; }
  FA3_INLINE const void* needed_next(const PagedRows& rows, int64_t i, int64_t column) {
    return rows.rows[i + rows.ahead] + rows.column + column;
  }
  FA3_INLINE PagedRows skip_rows(const PagedRows& rows, int64_t count) {
    return {rows.rows + count, rows.column, rows.ahead};
  }
  FA3_INLINE PagedRows skip_columns(const PagedRows& rows, int64_t count) {
    return {rows.rows, rows.column + count, rows.ahead};
  }
};

// Asks for the cache line of the row needed next that begins at `column`, if one does: once a line,
// since requests that are under way are few.
template <class Rows>
FA3_INLINE void prefetch_next(const Rows& rows, int64_t i, int64_t column) {
  constexpr int64_t kCacheLine = 64 / sizeof(typename Rows::Element);
  if (column % kCacheLine == 0) __builtin_prefetch(Rows::needed_next(rows, i, column), 0, 2);
}

// Rows whose length is not whole vectors, padded with zeros.
template <class Rows>
FA3_INLINE StreamedRows<float> widen(const Rows& rows, int64_t num_rows, int64_t dim,
                                     float* buffer) {
  const int64_t stride = (dim + kWidth - 1) / kWidth * kWidth;
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t c = 0; c < dim; c += kWidth) {
      prefetch_next(rows, r, c);
      store(buffer + r * stride + c, load_first(Rows::row(rows, r) + c, dim - c));
    }
  }
  return {buffer, stride, 0};
}

// `R` query rows whose softmax state, scores and P are contiguous, from row `first` on.
struct QueryRows {
  int64_t first;
  const float* q;
  float* scores;  // (R, block_k)
};

// scores[r][i] = q[r] . keys[i] for kWidth / R keys, of which `count` exist (the last one stands in
// for more): always kWidth products, so that one vector holds their sums.
template <int R, bool kPrefetch, class Rows>
FA3_INLINE void dot_keys(const BlockJob& job, const QueryRows& rows, const Rows& keys,
                         int64_t count, float* scores) {
  constexpr int kKeys = kWidth / R;
  const int64_t q_stride = packed_q_stride(job);
  const typename Rows::Element* key_rows[kKeys];
  V acc[kWidth];
  FA3_UNROLL
  for (int i = 0; i < kKeys; ++i) key_rows[i] = Rows::row(keys, i < count ? i : count - 1);
  FA3_UNROLL
  for (int i = 0; i < kWidth; ++i) acc[i] = V{};
  for (int64_t c = 0; c < job.head_dim; c += kWidth) {
    V q_vectors[R];
    FA3_UNROLL
    for (int r = 0; r < R; ++r) q_vectors[r] = load(rows.q + r * q_stride + c);
    FA3_UNROLL
    for (int i = 0; i < kKeys; ++i) {
      if (kPrefetch) prefetch_next(keys, i < count ? i : count - 1, c);
      const V key = load(key_rows[i] + c);
      FA3_UNROLL
      for (int r = 0; r < R; ++r) acc[r * kKeys + i] += q_vectors[r] * key;
    }
  }
  float sums[kWidth];
  store(sums, sums_of_rows(acc));
  FA3_UNROLL
  for (int r = 0; r < R; ++r) {
    __builtin_memcpy(scores + r * job.block_k, sums + r * kKeys, kKeys * sizeof(float));
  }
}

// o[r][0, C vectors) += sum_i p[r][i] * values[i].
template <int R, int C, bool kPrefetch, class Rows>
FA3_INLINE void add_columns(const BlockJob& job, const Rows& values, int64_t num_keys, float* o) {
  V acc[R][C];
  FA3_UNROLL
  for (int r = 0; r < R; ++r) {
    FA3_UNROLL
    for (int j = 0; j < C; ++j) acc[r][j] = load(o + r * job.result.columns + j * kWidth);
  }
  for (int64_t i = 0; i < num_keys; ++i) {
    V weights[R];
    FA3_UNROLL
    for (int r = 0; r < R; ++r) weights[r] = broadcast_from(job.buffers.p + r * job.block_k + i);
    FA3_UNROLL
    for (int j = 0; j < C; ++j) {
      if (kPrefetch) prefetch_next(values, i, j * kWidth);
      const V value = load(Rows::row(values, i) + j * kWidth);
      FA3_UNROLL
      for (int r = 0; r < R; ++r) acc[r][j] += weights[r] * value;
    }
  }
  FA3_UNROLL
  for (int r = 0; r < R; ++r) {
    FA3_UNROLL
    for (int j = 0; j < C; ++j) store(o + r * job.result.columns + j * kWidth, acc[r][j]);
  }
}

// R rows against `count` <= kChunk keys from `begin` on. Rows of keys and values are whole vectors.
template <int R, bool kPrefetch, class Rows>
static void attend_chunk(const BlockJob& job, int64_t first_row, const Rows& keys,
                         const Rows& values, int64_t begin, int64_t count) {
  constexpr int64_t kKeys = kWidth / R;
  // Vectors: enough independent sums to hide latency, few enough for the registers.
  constexpr int kColumns = R == 1 ? 8 : R == 8 ? 2 : 4;
  const Panels panels = {0, (count + kPanel - 1) / kPanel * kPanel};
  const QueryRows rows = {first_row, job.buffers.q + first_row * packed_q_stride(job),
                          job.buffers.scores};
  for (int64_t i = 0; i < count; i += kKeys) {
    dot_keys<R, kPrefetch>(job, rows, Rows::skip_rows(keys, i), count - i, rows.scores + i);
  }
  RowGroup group = {};
  group.row_keys = job.row_keys + first_row;
  group.o = job.result.o + first_row * job.result.columns;
  group.ref = job.result.ref + first_row;
  group.sum_lanes = job.buffers.sum_lanes + first_row * kWidth;
  if (job.buffers.largest != nullptr) group.largest = job.buffers.largest + first_row;
  for (int r = 0; r < R; ++r) {
    softmax_row<Floats<float>>(job, group, r, begin, panels);
    if (job.dropout.rows == nullptr) continue;
    drop_weights<Floats<float>>(job.dropout, job.dropout.rows[first_row + r], begin, begin + count,
                                job.buffers.p + r * job.block_k);
  }
  int64_t c = 0;
  for (; c + kColumns * kWidth <= job.head_dim_v; c += kColumns * kWidth) {
    add_columns<R, kColumns, kPrefetch>(job, Rows::skip_columns(values, c), count, group.o + c);
  }
  for (; c < job.head_dim_v; c += kWidth) {
    add_columns<R, 1, kPrefetch>(job, Rows::skip_columns(values, c), count, group.o + c);
  }
}

// Query rows that one pass over a chunk takes: as many as there are registers for.
constexpr int kMostRows = kWidth >= 16 ? 8 : 4;

// All rows, in passes; the first one asks for the memory that is needed next.
template <class Rows>
FA3_INLINE void attend_all_rows(const BlockJob& job, const Rows& keys, const Rows& values,
                                int64_t begin, int64_t count) {
  int64_t row = 0;
  if (job.num_rows >= kMostRows) {
    attend_chunk<kMostRows, true>(job, 0, keys, values, begin, count);
    row = kMostRows;
  } else if (job.num_rows >= 4) {
    attend_chunk<4, true>(job, 0, keys, values, begin, count);
    row = 4;
  } else if (job.num_rows >= 2) {
    attend_chunk<2, true>(job, 0, keys, values, begin, count);
    row = 2;
  } else {
    attend_chunk<1, true>(job, 0, keys, values, begin, count);
    row = 1;
  }
  for (; row + 4 <= job.num_rows; row += 4) {
    attend_chunk<4, false>(job, row, keys, values, begin, count);
  }
  for (; row < job.num_rows; ++row) attend_chunk<1, false>(job, row, keys, values, begin, count);
}

template <class Rows>
FA3_INLINE void attend_chunk_rows(const BlockJob& job, const Rows& keys, const Rows& values,
                                  int64_t begin, int64_t count) {
  if (job.head_dim % kWidth == 0 && job.head_dim_v % kWidth == 0) {
    attend_all_rows(job, keys, values, begin, count);
  } else {
    attend_all_rows(job, widen(keys, count, job.head_dim, job.buffers.k),
                    widen(values, count, job.head_dim_v, job.buffers.v), begin, count);
  }
}

// Where `count` keys from `begin` on lie.
template <class E>
FA3_INLINE void find_rows(const KeySource<E>& keys, int64_t begin, int64_t count, const E** rows) {
  RowWalk<E> walk = RowWalk<E>::from(keys, begin);
  for (int64_t i = 0; i < count; ++i) rows[i] = RowWalk<E>::next(walk);
}

// A chunk of keys or values in place, and the distance in bytes to the next one.
template <class E>
FA3_INLINE StreamedRows<E> stream_rows(const KeySource<E>& rows, int64_t begin,
                                       const KeySource<E>& next, int64_t next_begin) {
  const E* const from = row_of(rows, begin);
  const E* const to = row_of(next, next_begin);
  const int64_t ahead = reinterpret_cast<const char*>(to) - reinterpret_cast<const char*>(from);
  return {from, rows.row_stride, ahead};
}

// What of a key head is attended to next.
struct Chunk {
  const BlockJob* job;
  int64_t begin;
};

// At most kChunk keys of a job. Memory is asked for as far ahead as the next chunk is, if that is
// whole.
template <class T>
static void attend_next_chunk(Chunk chunk, Chunk next) {
  const BlockJob& job = *chunk.job;
  const int64_t end = job.row_keys[job.num_rows - 1].end;
  const int64_t count = smaller(kChunk, end - chunk.begin);
  if (next.begin + count > end) next = chunk;
  const KeySource<T> keys = keys_of<T>(job), next_keys = keys_of<T>(*next.job);
  const KeySource<T> values = values_of<T>(job), next_values = values_of<T>(*next.job);
  if (job.pages.numbers == nullptr) {
    attend_chunk_rows(job, stream_rows(keys, chunk.begin, next_keys, next.begin),
                      stream_rows(values, chunk.begin, next_values, next.begin), chunk.begin,
                      count);
  } else {
    const T* k[2 * kChunk];
    const T* v[2 * kChunk];
    find_rows(keys, chunk.begin, count, k);
    find_rows(values, chunk.begin, count, v);
    find_rows(next_keys, next.begin, count, k + kChunk);
    find_rows(next_values, next.begin, count, v + kChunk);
    attend_chunk_rows(job, PagedRows<T>{k, 0, kChunk}, PagedRows<T>{v, 0, kChunk}, chunk.begin,
                      count);
  }
}

// All jobs see the same keys, and go over them chunk by chunk.
template <class Format, class AttendChunk>
FA3_INLINE void attend_in_chunks(const BlockJob* jobs, int64_t num_jobs, AttendChunk&& attend) {
  const KeyRange visible = {jobs[0].row_keys[0].begin, jobs[0].row_keys[jobs[0].num_rows - 1].end};
  attend_in_range<Format>(jobs, num_jobs, [&](const BlockJob* some, int64_t count) {
    for (int64_t begin = visible.begin; begin < visible.end; begin += kChunk) {
      for (int64_t i = 0; i < count; ++i) {
        const bool is_last = i + 1 == count;
        attend(Chunk{some + i, begin},
               Chunk{is_last ? some : some + i + 1, is_last ? begin + kChunk : begin});
      }
    }
  });
}

template <class T>
static void attend_rows(const BlockJob* jobs, int64_t num_jobs) {
  for (int64_t i = 0; i < num_jobs; ++i) pack_queries<Floats<T>>(jobs[i]);
  attend_in_chunks<Floats<T>>(jobs, num_jobs, attend_next_chunk<T>);
}

static void attend_dequantized_chunks(const BlockJob& job) {
  const int64_t k_stride = whole_vectors(job.head_dim), v_stride = whole_vectors(job.head_dim_v);
  const int64_t visible_end = job.row_keys[job.num_rows - 1].end;
  for (int64_t begin = job.row_keys[0].begin; begin < visible_end; begin += kChunk) {
    const int64_t count = smaller(kChunk, visible_end - begin);
    const int64_t ahead = begin + 2 * kChunk <= visible_end ? kChunk : 0;
    dequantize_rows(keys_of<Float8>(job), job.k_quantization, begin, count, ahead, k_stride,
                    job.buffers.k);
    dequantize_rows(values_of<Float8>(job), job.v_quantization, begin, count, ahead, v_stride,
                    job.buffers.v);
    attend_all_rows(job, StreamedRows<float>{job.buffers.k, k_stride, 0},
                    StreamedRows<float>{job.buffers.v, v_stride, 0}, begin, count);
  }
}

static void attend_dequantized_rows(const BlockJob* jobs, int64_t num_jobs) {
  attend_in_range<Dequantized>(jobs, num_jobs, [](const BlockJob* some, int64_t count) {
    for (int64_t i = 0; i < count; ++i) attend_dequantized_chunks(some[i]);
  });
}

}  // namespace fa3::cpu::FA3_ISA
