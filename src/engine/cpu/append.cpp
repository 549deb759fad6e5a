// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/append.h"

#include <algorithm>

#include "engine/cpu/parallel.h"

namespace fa3::cpu {
namespace {

// In float32, each column rounded once. `to` may be `from`.
template <class T, class Table>
void rotate(const RotaryTables& rotary, int64_t position, const T* from, int64_t dim, T* to) {
  const auto* cos = static_cast<const Table*>(rotary.cos) + position * rotary.cos_stride;
  const auto* sin = static_cast<const Table*>(rotary.sin) + position * rotary.sin_stride;
  const int64_t step = rotary.interleaved ? 2 : 1;
  const int64_t distance = rotary.interleaved ? 1 : rotary.pairs;
  for (int64_t i = 0; i < rotary.pairs; ++i) {
    const float x = to_float(from[i * step]);
    const float y = to_float(from[i * step + distance]);
    const float c = to_float(cos[i]);
    const float s = to_float(sin[i]);
    to[i * step] = from_float<T>(x * c - y * s);
    to[i * step + distance] = from_float<T>(x * s + y * c);
  }
  if (to != from) std::copy(from + 2 * rotary.pairs, from + dim, to + 2 * rotary.pairs);
}

template <class T>
void rotate(const RotaryTables& rotary, int64_t position, const T* from, int64_t dim, T* to) {
  if (rotary.dtype == DType::float32) {
    rotate<T, float>(rotary, position, from, dim, to);
  } else {
    rotate<T, T>(rotary, position, from, dim, to);
  }
}

template <class T>
void append_row(const AppendProblem& p, int64_t b, int64_t row) {
  const Rows rows = p.lengths_new.rows_of(b);
  if (row >= rows.used) return;
  const int64_t to = p.seqused[b] + row;
  for (int64_t head = 0; head < p.heads_k; ++head) {
    const T* v = p.v.at<T>(b, rows.begin + row, head);
    std::copy_n(v, p.head_dim_v, row_at<T>(p.v_cache, p.places, b, to, head));
    rotate(p.rotary, p.first_position[b] + row, p.k.at<T>(b, rows.begin + row, head), p.head_dim,
           row_at<T>(p.k_cache, p.places, b, to, head));
  }
}

template <class T>
void rotate_query(const AppendProblem& p, int64_t b, int64_t row) {
  const Rows rows = p.lengths_q.rows_of(b);
  if (row >= rows.used) return;
  const int64_t position = p.first_position[b] + (p.queries_share_position ? 0 : row);
  for (int64_t head = 0; head < p.heads_q; ++head) {
    rotate(p.rotary, position, p.q.at<T>(b, rows.begin + row, head), p.head_dim,
           p.q_rotated.at<T>(b, rows.begin + row, head));
  }
}

}  // namespace

Status run_append(const AppendProblem& p, void*) {
  const int64_t keys = p.lengths_new.max;
  const int64_t queries = p.rotates_queries ? p.lengths_q.max : 0;
  visit_dtype(p.dtype, [&]<class T>(T) {
    parallel_for(p.batch * (keys + queries), p.num_threads, [&](int64_t task, int) {
      const int64_t b = task / (keys + queries);
      const int64_t row = task % (keys + queries);
      row < keys ? append_row<T>(p, b, row) : rotate_query<T>(p, b, row - keys);
    });
  });
  return {};
}

}  // namespace fa3::cpu
