// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/caches/caches.h"

#include <algorithm>
#include <type_traits>

#include "engine/cpu/machine/parallel.h"

namespace fa3::cpu {
namespace {

// How a row leaves: each column, in float32, divided by this and rounded once.
template <class To>
To rounded(float x, float divisor) {
  constexpr bool kHasScale = std::is_same_v<To, Float8E4M3> || std::is_same_v<To, Float8E5M2>;
  return from_float<To>(kHasScale ? x / divisor : x);
}

template <class To, class T>
void copy(const T* from, int64_t begin, int64_t end, float divisor, To* to) {
  if constexpr (std::is_same_v<T, To>) {
    if (to != from) std::copy(from + begin, from + end, to + begin);
  } else {
    for (int64_t c = begin; c < end; ++c) to[c] = rounded<To>(to_float(from[c]), divisor);
  }
}

// `to` may be `from`.
template <class Table, class T, class To>
void rotate_by(const RotaryTables& rotary, int64_t position, const T* from, int64_t dim,
               float divisor, To* to) {
  const auto* cos = static_cast<const Table*>(rotary.cos) + position * rotary.cos_stride;
  const auto* sin = static_cast<const Table*>(rotary.sin) + position * rotary.sin_stride;
  const int64_t step = rotary.interleaved ? 2 : 1;
  const int64_t distance = rotary.interleaved ? 1 : rotary.pairs;
  for (int64_t i = 0; i < rotary.pairs; ++i) {
    const float x = to_float(from[i * step]);
    const float y = to_float(from[i * step + distance]);
    const float c = to_float(cos[i]);
    const float s = to_float(sin[i]);
    to[i * step] = rounded<To>(x * c - y * s, divisor);
    to[i * step + distance] = rounded<To>(x * s + y * c, divisor);
  }
  copy(from, 2 * rotary.pairs, dim, divisor, to);
}

template <class T, class To>
void rotate(const RotaryTables& rotary, int64_t position, const T* from, int64_t dim, float divisor,
            To* to) {
  if (rotary.dtype == DType::float32) {
    rotate_by<float>(rotary, position, from, dim, divisor, to);
  } else {
    rotate_by<T>(rotary, position, from, dim, divisor, to);
  }
}

template <class T, class Cached>
void append_row(const AppendProblem& p, int64_t b, int64_t row) {
  const Rows rows = p.lengths_new.rows_of(b);
  if (row >= rows.used) return;
  const int64_t to = p.seqused[b] + row;
  for (int64_t head = 0; head < p.heads_k; ++head) {
    copy(p.v.at<T>(b, rows.begin + row, head), 0, p.head_dim_v, divisor_of(p.v_descale, b, head),
         row_at<Cached>(p.v_cache, p.places, b, to, head));
    rotate(p.rotary, p.first_position[b] + row, p.k.at<T>(b, rows.begin + row, head), p.head_dim,
           divisor_of(p.k_descale, b, head), row_at<Cached>(p.k_cache, p.places, b, to, head));
  }
}

template <class T>
void rotate_query(const AppendProblem& p, int64_t b, int64_t row) {
  const Rows rows = p.lengths_q.rows_of(b);
  if (row >= rows.used) return;
  const int64_t position = p.first_position[b] + (p.queries_share_position ? 0 : row);
  for (int64_t head = 0; head < p.heads_q; ++head) {
    rotate(p.rotary, position, p.q.at<T>(b, rows.begin + row, head), p.head_dim, 1.0f,
           p.q_rotated.at<T>(b, rows.begin + row, head));
  }
}

}  // namespace

Status run_append(const AppendProblem& p, void*) {
  const int64_t keys = p.lengths_new.max;
  const int64_t queries = p.rotates_queries ? p.lengths_q.max : 0;
  const auto run = [&]<class T>(T) {
    const auto append = p.cache_dtype == p.dtype              ? append_row<T, T>
                        : p.cache_dtype == DType::float8_e4m3 ? append_row<T, Float8E4M3>
                                                              : append_row<T, Float8E5M2>;
    parallel_for(p.batch * (keys + queries), p.num_threads, [&](int64_t task, int) {
      const int64_t b = task / (keys + queries);
      const int64_t row = task % (keys + queries);
      row < keys ? append(p, b, row) : rotate_query<T>(p, b, row - keys);
    });
  };
  p.dtype == DType::float8_e4m3   ? run(Float8E4M3{})
  : p.dtype == DType::float8_e5m2 ? run(Float8E5M2{})
                                  : visit_dtype(p.dtype, run);
  return {};
}

}  // namespace fa3::cpu
