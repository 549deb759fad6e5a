// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/caches/caches.h"

#include "engine/cpu/caches/rotate.h"
#include "engine/cpu/machine/parallel.h"

namespace fa3::cpu {
namespace {

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
