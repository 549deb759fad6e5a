// SPDX-License-Identifier: Apache-2.0
//
// Rows of operands: conversion to and from working precision, the rows that take no part, and the
// weights of a row.
#pragma once

#include <fa3/status.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/dtype.h"
#include "core/problem.h"

namespace fa3::cpu {

template <class Real, class T>
void load_row(const T* row, int64_t dim, Real* out) {
  for (int64_t c = 0; c < dim; ++c) out[c] = static_cast<Real>(to_float(row[c]));
}

template <class Real, class T>
void store_row(const Real* row, int64_t dim, T* out) {
  for (int64_t c = 0; c < dim; ++c) out[c] = from_float<T>(static_cast<float>(row[c]));
}

// Calls visit(batch, row) for every row of the tensor that no sequence uses: past a sequence's used
// length, and past the last packed sequence.
template <class Visitor>
void for_each_unused_row(const Lengths& lengths, int64_t batch, Visitor&& visit) {
  if (lengths.alike()) return;
  for (int64_t b = 0; b < batch; ++b) {
    const Rows rows = lengths.rows_of(b);
    for (int64_t r = rows.used; r < rows.owned; ++r) visit(b, rows.begin + r);
  }
  if (!lengths.packed()) return;
  for (int64_t row = lengths.cu_seqlens[batch]; row < lengths.total; ++row) visit(0, row);
}

// The contract for those rows: values and gradients are zero.
inline void zero_unused_rows(const Operand& operand, const Lengths& lengths, int64_t batch,
                             int64_t heads, int64_t dim) {
  for_each_unused_row(lengths, batch, [&](int64_t b, int64_t row) {
    visit_dtype(operand.dtype, [&]<class T>(T) {
      for (int64_t h = 0; h < heads; ++h) std::fill_n(operand.at<T>(b, row, h), dim, T{});
    });
  });
}

// Results of a forward: zeros, and an LSE of -inf.
inline void fill_unused_results(const Problem& p) {
  zero_unused_rows(p.o, p.lengths_q, p.batch, p.heads_q, p.head_dim_v);
  if (p.lse.data == nullptr) return;
  for_each_unused_row(p.lengths_q, p.batch, [&](int64_t b, int64_t row) {
    for (int64_t h = 0; h < p.heads_q; ++h) {
      *p.lse.at(b, h, row) = -std::numeric_limits<float>::infinity();
    }
  });
}

// Gradients that are added to others stay as they are.
inline void zero_unused_gradients(const BackwardProblem& p) {
  if (!p.accumulate_dq) {
    zero_unused_rows(p.dq, p.lengths_q, p.batch, p.heads_q, p.head_dim);
  }
  if (!p.accumulate_dkv) {
    zero_unused_rows(p.dk, p.lengths_k, p.batch, p.heads_k, p.head_dim);
    zero_unused_rows(p.dv, p.lengths_k, p.batch, p.heads_k, p.head_dim_v);
  }
}

// A call that goes on from another's result leaves them as they are there.
inline void keep_unused_rows(const Problem& p) {
  for_each_unused_row(p.lengths_q, p.batch, [&](int64_t b, int64_t row) {
    for (int64_t h = 0; h < p.heads_q; ++h) {
      const float* const from = p.partial.o.at<float>(b, row, h);
      const float lse = *p.partial.lse.at(b, h, row);
      const bool empty = lse == -std::numeric_limits<float>::infinity();
      visit_dtype(p.o.dtype, [&]<class T>(T) {
        T* const to = p.o.at<T>(b, row, h);
        for (int64_t c = 0; c < p.head_dim_v; ++c) {
          to[c] = empty ? T{} : from_float<T>(from[c]);
        }
      });
      if (p.lse.data != nullptr) *p.lse.at(b, h, row) = lse;
    }
  });
}

// The largest so far becomes `logit` where that is larger, or NaN, which stays. Zeros are positive,
// so that no order of calls decides their sign. Threads may call it at once.
inline void raise_max_logit(float* largest, float logit) {
  std::atomic_ref<float> at(*largest);
  float seen = at.load(std::memory_order_relaxed);
  while (seen == seen && !(logit <= seen)) {
    if (at.compare_exchange_weak(seen, logit + 0.0f, std::memory_order_relaxed)) return;
  }
}

// What it is where no pair is seen.
inline void clear_max_logit(const Problem& p) {
  if (!p.max_logit.on) return;
  for (int64_t i = 0; i < p.batch * p.heads_q; ++i) {
    *p.max_logit.at(i / p.heads_q, i % p.heads_q) = -std::numeric_limits<float>::infinity();
  }
}

inline void zero_tensor(const Operand& operand, int64_t batch, int64_t rows, int64_t heads,
                        int64_t dim) {
  if (rows == 0) return;  // so that an extent beside no rows costs nothing
  visit_dtype(operand.dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < batch * rows * heads; ++i) {
      std::fill_n(operand.at<T>(i / heads / rows, i / heads % rows, i % heads), dim, T{});
    }
  });
}

// Without a query row every gradient is zero.
inline Status zero_gradients(const BackwardProblem& problem) {
  const Lengths& keys = problem.lengths_k;
  const int64_t batch = keys.packed() ? 1 : problem.batch;
  const int64_t rows = keys.packed() ? keys.total : keys.max;
  if (!problem.accumulate_dkv) {
    zero_tensor(problem.dk, batch, rows, problem.heads_k, problem.head_dim);
    zero_tensor(problem.dv, batch, rows, problem.heads_k, problem.head_dim_v);
  }
  if (problem.dsink != nullptr) std::fill_n(problem.dsink, problem.heads_q, 0.0f);
  return {};
}

// exp(logit - lse). Equal logits weigh 1, infinite ones too: what is +inf takes the whole row.
template <class Float>
inline Float exp_difference(Float logit, Float lse) {
  return logit == lse ? Float{1} : std::exp(logit - lse);
}

}  // namespace fa3::cpu
