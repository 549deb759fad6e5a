// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/latent/latent.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/cpu/latent/rows.h"
#include "engine/cpu/machine/parallel.h"
#include "engine/cpu/rows.h"

namespace fa3::cpu {
namespace {

constexpr double kNone = -std::numeric_limits<double>::infinity();

// One query, all heads.
struct Scratch {
  double *q, *k, *o, *max, *sum;
};

Scratch carve(const MlaProblem& p, WorkspaceAllocator& allocator) {
  return {.q = allocator.take<double>(p.heads, p.head_dim),
          .k = allocator.take<double>(p.head_dim),
          .o = allocator.take<double>(p.heads, kLatentValueDim),
          .max = allocator.take<double>(p.heads),
          .sum = allocator.take<double>(p.heads)};
}

// Adds the key in s.k to the softmax of one head.
void add_key(const MlaProblem& p, const Scratch& s, int64_t head) {
  const double* const q = s.q + head * p.head_dim;
  double* const o = s.o + head * kLatentValueDim;
  double score = 0;
  for (int64_t c = 0; c < p.head_dim; ++c) score += q[c] * s.k[c];
  score *= p.scale;
  if (score == kNone) return;
  if (score > s.max[head] || std::isnan(score)) {
    const double factor = std::exp(s.max[head] - score);
    s.max[head] = score;
    s.sum[head] *= factor;
    for (int64_t c = 0; c < kLatentValueDim; ++c) o[c] *= factor;
  }
  const double weight = std::exp(score - s.max[head]);
  s.sum[head] += weight;
  for (int64_t c = 0; c < kLatentValueDim; ++c) o[c] += weight * s.k[c];
}

void run_query(const MlaProblem& p, int64_t b, Rows rows, int64_t query, const Scratch& s) {
  const int64_t row = rows.begin + query, own = p.head_dim - p.q_rope_dim;
  visit_dtype(p.dtype, [&]<class T>(T) {
    for (int64_t h = 0; h < p.heads; ++h) {
      load_row(p.q.at<T>(b, row, h), own, s.q + h * p.head_dim);
      if (p.q_rope_dim == 0) continue;
      load_row(p.q_rope.at<T>(b, row, h), p.q_rope_dim, s.q + h * p.head_dim + own);
    }
  });
  std::fill_n(s.o, p.heads * kLatentValueDim, 0.0);
  std::fill_n(s.max, p.heads, kNone);
  std::fill_n(s.sum, p.heads, 0.0);
  const int64_t behind = p.causal ? rows.used - query - 1 : 0;
  const int64_t keys = p.sparse ? 0 : p.lengths_k.rows_of(b).used - behind;
  KeyWalk walk(p, b, query, std::max<int64_t>(keys, 0));
  const LatentCache* cache = nullptr;
  int64_t slot = 0;
  while (walk.next(&cache, &slot)) {
    read_row(*cache, slot, s.k);
    for (int64_t h = 0; h < p.heads; ++h) add_key(p, s, h);
  }
  visit_dtype(p.o.dtype, [&]<class T>(T) {
    for (int64_t h = 0; h < p.heads; ++h) {
      const bool none = s.sum[h] == 0;
      const double lse = none ? kNone : s.max[h] + std::log(s.sum[h]);
      const double factor = p.sink != nullptr ? sink_factor(lse, p.sink[h]) : 1;
      double* const o = s.o + h * kLatentValueDim;
      for (int64_t c = 0; c < kLatentValueDim; ++c) o[c] *= factor / (none ? 1 : s.sum[h]);
      store_row(o, kLatentValueDim, p.o.at<T>(b, row, h));
      if (p.lse.data != nullptr) *p.lse.at(b, h, row) = final_lse(p, lse, h);
      if (p.max.data != nullptr) *p.max.at(b, h, row) = static_cast<float>(s.max[h]);
    }
  });
}

}  // namespace

Status plan_reference_mla(const MlaProblem& p, Plan* plan) {
  plan->engine = "reference";
  plan->kernel = "textbook, latent rows in double";
  plan->why = "double precision, one key after the other";
  plan->num_threads = p.num_threads;
  plan->num_tasks = p.batch * p.lengths_q.max;
  plan->workspace_bytes = bytes_of([&](WorkspaceAllocator& allocator) {
    take_thread_memory(allocator, p.num_threads,
                       [&](WorkspaceAllocator& thread) { carve(p, thread); });
  });
  return {};
}

Status run_reference_mla(const MlaProblem& p, const Plan& plan, void* workspace, void*) {
  WorkspaceAllocator allocator(workspace);
  const ThreadMemory threads = take_thread_memory(
      allocator, p.num_threads, [&](WorkspaceAllocator& thread) { carve(p, thread); });
  parallel_for(plan.num_tasks, plan.num_threads, [&](int64_t task, int worker) {
    const int64_t b = task / p.lengths_q.max, query = task % p.lengths_q.max;
    const Rows rows = p.lengths_q.rows_of(b);
    if (query >= rows.used) return;
    WorkspaceAllocator thread = threads[worker];
    run_query(p, b, rows, query, carve(p, thread));
  });
  fill_unowned_rows(p);
  return {};
}

}  // namespace fa3::cpu
