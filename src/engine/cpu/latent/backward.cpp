// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/latent/latent.h"

#include <algorithm>
#include <cmath>

#include "core/ceil_div.h"
#include "core/error.h"
#include "core/macros.h"
#include "engine/cpu/latent/rows.h"
#include "engine/cpu/machine/parallel.h"
#include "engine/cpu/rows.h"
#include "engine/cpu/tiled/tiled.h"

namespace fa3::cpu {
namespace {

// A step has as many queries as there are threads. First each query computes its gradients, those
// of its keys into memory of its own. Then each thread adds these to its share of the cache's
// rows, query after query: the order of every sum is that of queries and their indices.

// Memory of one query of a step. Its keys are those of its indices that name rows.
struct Slot {
  float *q, *dq;       // (heads, head_dim)
  float *o, *d_o;      // (heads, kLatentValueDim)
  float *lse, *d_lse;  // (heads)
  float *k, *dk;       // (keys, head_dim)
  float* dv;           // (keys, kLatentValueDim)
  double* dsink;       // (heads)
  int32_t* rows;       // (keys): of the cache
  int64_t* num_keys;   // (1)
  std::byte* workspace;
};

// Heads are rows of queries here, since all of them see the same keys.
BackwardProblem small_problem(const MlaBackwardProblem& p, int64_t keys) {
  BackwardProblem small;
  small.batch = small.heads_q = small.heads_k = 1;
  small.head_dim = p.head_dim;
  small.head_dim_v = kLatentValueDim;
  small.lengths_q = {.max = p.heads, .total = p.heads};
  small.lengths_k = {.max = keys, .total = keys};
  small.scale = p.scale;
  small.q = small.dq = small.k = small.v = small.dk = {.row_stride = p.head_dim};
  small.o = small.d_o = small.dv = {.row_stride = kLatentValueDim};
  small.lse = small.d_lse = {.row_stride = 1};
  // With a sink the softmax of one key has a gradient, too.
  small.has_d_lse = p.sink != nullptr || p.d_lse.data != nullptr;
  return small;
}

// The tiled backward asks for no more where there are fewer keys.
Status workspace_of(const MlaBackwardProblem& p, int64_t* bytes) {
  Plan plan;
  FA3_TRY(plan_backward(small_problem(p, p.keys.num_indices), &plan));
  *bytes = plan.workspace_bytes;
  return {};
}

Slot carve(const MlaBackwardProblem& p, int64_t workspace_bytes, WorkspaceAllocator& allocator) {
  const int64_t keys = p.keys.num_indices;
  return {.q = allocator.take<float>(p.heads, p.head_dim),
          .dq = allocator.take<float>(p.heads, p.head_dim),
          .o = allocator.take<float>(p.heads, kLatentValueDim),
          .d_o = allocator.take<float>(p.heads, kLatentValueDim),
          .lse = allocator.take<float>(p.heads),
          .d_lse = allocator.take<float>(p.heads),
          .k = allocator.take<float>(keys, p.head_dim),
          .dk = allocator.take<float>(keys, p.head_dim),
          .dv = allocator.take<float>(keys, kLatentValueDim),
          .dsink = allocator.take<double>(p.heads),
          .rows = allocator.take<int32_t>(keys),
          .num_keys = allocator.take<int64_t>(1),
          .workspace = allocator.take<std::byte>(workspace_bytes)};
}

int64_t rows_of_cache(const MlaBackwardProblem& p) {
  return p.keys.cache.pages * p.keys.cache.page_size;
}

// Where rows of the cache's gradient are summed up: in place if that is float32.
struct Sums {
  float* own = nullptr;  // (rows of the cache, head_dim); null: in place
  double* dsink = nullptr;

  float* at(const MlaBackwardProblem& p, int64_t row) const {
    if (own != nullptr) return own + row * p.head_dim;
    const int64_t page_size = p.keys.cache.page_size;
    return p.d_cache.at<float>(row / page_size, row % page_size, 0);
  }
};

Sums carve_sums(const MlaBackwardProblem& p, WorkspaceAllocator& allocator) {
  const bool in_place = p.d_cache.dtype == DType::float32;
  return {.own = in_place ? nullptr : allocator.take<float>(rows_of_cache(p), p.head_dim),
          .dsink = allocator.take<double>(p.heads)};
}

void read(const Operand& from, int64_t b, int64_t row, int64_t heads, int64_t dim, float* to) {
  visit_dtype(from.dtype, [&]<class T>(T) {
    for (int64_t h = 0; h < heads; ++h) load_row(from.at<T>(b, row, h), dim, to + h * dim);
  });
}

// With `f` the share of the keys in a softmax with a sink: dS = exp(S - lse) (f (dP - D) + d_lse)
// if the LSE is without the sink, dS = exp(S - lse) (dP - D + d_lse) else. The sink has no value,
// so its own dP is 0.
void read_scalars(const MlaBackwardProblem& p, int64_t b, int64_t row, const Slot& s) {
  for (int64_t h = 0; h < p.heads; ++h) {
    const float lse = *p.lse.at(b, h, row);
    const float d_lse = p.d_lse.data != nullptr ? *p.d_lse.at(b, h, row) : 0;
    s.lse[h] = lse;
    s.d_lse[h] = d_lse;
    if (p.sink == nullptr) continue;
    const float* const o = s.o + h * kLatentValueDim;
    float* const d_o = s.d_o + h * kLatentValueDim;
    double delta = p.lse_with_sink ? -double{d_lse} : 0;
    for (int64_t c = 0; c < kLatentValueDim; ++c) delta += double{o[c]} * double{d_o[c]};
    const double sink = p.sink[h];
    const double f = p.lse_with_sink ? 1 - std::exp(sink - lse) : sink_factor(lse, p.sink[h]);
    if (!std::isinf(sink)) s.dsink[h] = -(1 - f) * delta;
    if (p.lse_with_sink) continue;
    for (int64_t c = 0; c < kLatentValueDim; ++c) d_o[c] *= static_cast<float>(f);
  }
}

Status run_query(const MlaBackwardProblem& p, int64_t query, const Slot& s) {
  const int64_t b = query / p.lengths_q.max, row = query % p.lengths_q.max;
  int64_t keys = 0, row_of_cache = 0;
  const LatentCache* cache = nullptr;
  KeyWalk walk(p, b, row, 0);
  while (walk.next(&cache, &row_of_cache)) {
    read_row(*cache, row_of_cache, s.k + keys * p.head_dim);
    s.rows[keys++] = static_cast<int32_t>(row_of_cache);
  }
  *s.num_keys = keys;
  std::fill_n(s.dq, p.heads * p.head_dim, 0.0f);
  std::fill_n(s.dsink, p.heads, 0.0);
  if (keys > 0) {
    read(p.q, b, row, p.heads, p.head_dim, s.q);
    read(p.o, b, row, p.heads, kLatentValueDim, s.o);
    read(p.d_o, b, row, p.heads, kLatentValueDim, s.d_o);
    read_scalars(p, b, row, s);
    BackwardProblem small = small_problem(p, keys);
    small.q.data = s.q, small.dq.data = s.dq;
    small.k.data = small.v.data = s.k;
    small.dk.data = s.dk, small.dv.data = s.dv;
    small.o.data = s.o, small.d_o.data = s.d_o;
    small.lse.data = s.lse, small.d_lse.data = s.d_lse;
    Plan plan;
    FA3_TRY(plan_backward(small, &plan));
    FA3_TRY(run_backward(small, plan, s.workspace, nullptr));
  } else if (p.sink != nullptr && p.lse_with_sink && p.d_lse.data != nullptr) {
    // The LSE is the sink.
    for (int64_t h = 0; h < p.heads; ++h) {
      if (!std::isinf(p.sink[h])) s.dsink[h] = *p.d_lse.at(b, h, row);
    }
  }
  visit_dtype(p.dq.dtype, [&]<class T>(T) {
    for (int64_t h = 0; h < p.heads; ++h) {
      store_row(s.dq + h * p.head_dim, p.head_dim, p.dq.at<T>(b, row, h));
    }
  });
  return {};
}

// Rows [begin, end) of the cache.
void add_keys(const MlaBackwardProblem& p, const Slot& s, const Sums& sums, int64_t begin,
              int64_t end) {
  for (int64_t key = 0; key < *s.num_keys; ++key) {
    if (s.rows[key] < begin || s.rows[key] >= end) continue;
    float* const sum = sums.at(p, s.rows[key]);
    const float* const dk = s.dk + key * p.head_dim;
    const float* const dv = s.dv + key * kLatentValueDim;
    for (int64_t c = 0; c < p.head_dim; ++c) sum[c] += dk[c];
    for (int64_t c = 0; c < kLatentValueDim; ++c) sum[c] += dv[c];
  }
}

}  // namespace

Status plan_mla_backward(const MlaBackwardProblem& p, Plan* plan) {
  int64_t bytes = 0;
  FA3_TRY(workspace_of(p, &bytes));
  plan->engine = "cpu";
  plan->num_threads = p.num_threads;
  plan->num_tasks = p.batch * p.lengths_q.max;
  plan->workspace_bytes = bytes_of([&](WorkspaceAllocator& allocator) {
    carve_sums(p, allocator);
    take_thread_memory(allocator, p.num_threads,
                       [&](WorkspaceAllocator& slot) { carve(p, bytes, slot); });
  });
  if (plan->wants_words) {
    plan->kernel = "tiled backward, latent rows read as floats";
    plan->why =
        concat("a query a task, steps of ", p.num_threads,
               " queries; the gradient of a row is summed in the order of queries: repeatable");
  }
  return {};
}

Status run_mla_backward(const MlaBackwardProblem& p, const Plan& plan, void* workspace, void*) {
  int64_t bytes = 0;
  FA3_TRY(workspace_of(p, &bytes));
  WorkspaceAllocator allocator(workspace);
  const Sums sums = carve_sums(p, allocator);
  const ThreadMemory memory = take_thread_memory(
      allocator, p.num_threads, [&](WorkspaceAllocator& slot) { carve(p, bytes, slot); });
  const auto slot = [&](int64_t index) {
    WorkspaceAllocator own = memory[static_cast<int>(index)];
    return carve(p, bytes, own);
  };
  const int64_t rows = rows_of_cache(p), threads = p.num_threads;
  const int64_t rows_each = ceil_div(rows, threads);
  const auto for_rows = [&](auto&& visit) {  // (first row, end) of each thread
    parallel_for(threads, p.num_threads, [&](int64_t i, int) {
      visit(std::min(i * rows_each, rows), std::min((i + 1) * rows_each, rows));
    });
  };
  for_rows([&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) std::fill_n(sums.at(p, row), p.head_dim, 0.0f);
  });
  std::fill_n(sums.dsink, p.heads, 0.0);
  for (int64_t first = 0; first < plan.num_tasks; first += threads) {
    const int64_t count = std::min(threads, plan.num_tasks - first);
    parallel_for(count, p.num_threads, [&](int64_t i, int) {
      const Status done = run_query(p, first + i, slot(i));
      static_cast<void>(done);  // the tiled backward's plan refuses none of these
    });
    for_rows([&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < count; ++i) add_keys(p, slot(i), sums, begin, end);
    });
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t h = 0; h < p.heads; ++h) sums.dsink[h] += slot(i).dsink[h];
    }
  }
  if (sums.own != nullptr) {
    for_rows([&](int64_t begin, int64_t end) {
      visit_dtype(p.d_cache.dtype, [&]<class T>(T) {
        const int64_t page_size = p.keys.cache.page_size;
        for (int64_t row = begin; row < end; ++row) {
          store_row(sums.at(p, row), p.head_dim,
                    p.d_cache.at<T>(row / page_size, row % page_size, 0));
        }
      });
    });
  }
  if (p.dsink != nullptr) {
    for (int64_t h = 0; h < p.heads; ++h) p.dsink[h] = static_cast<float>(sums.dsink[h]);
  }
  return {};
}

}  // namespace fa3::cpu
