// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/latent/latent.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/ceil_div.h"
#include "core/error.h"
#include "core/macros.h"
#include "engine/cpu/latent/rows.h"
#include "engine/cpu/machine/parallel.h"
#include "engine/cpu/rows.h"
#include "engine/cpu/tiled/tiled.h"

namespace fa3::cpu {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// Rows of a task, query x head: enough that reading a key takes little beside its products.
constexpr int64_t kRowsOfTask = 1024;
// Keys that are read at once: 1.2 MB as floats. Going on from their result costs a row of O for
// every 512 keys, which is 1 part in 500 of its products.
constexpr int64_t kKeysAtOnce = 512;

int64_t queries_of_task(const MlaProblem& p) {
  if (p.sparse) return 1;
  return std::clamp<int64_t>(kRowsOfTask / p.heads, 1, std::max<int64_t>(p.lengths_q.max, 1));
}

// Memory of one worker.
struct Scratch {
  float* q;    // (queries, heads, head_dim)
  float* k;    // (kKeysAtOnce, head_dim)
  float* o;    // (queries, heads, kLatentValueDim)
  float* lse;  // (heads, queries)
  float* max;  // (heads, queries)
  std::byte* workspace;
};

// Queries of the scratch memory against `keys` of its keys. Those begin `hidden` keys before the
// last one that the last query sees.
Problem small_problem(const MlaProblem& p, int64_t queries, int64_t keys, int64_t hidden) {
  Problem small;
  small.batch = 1;
  small.heads_q = p.heads;
  small.heads_k = 1;
  small.head_dim = p.head_dim;
  small.head_dim_v = kLatentValueDim;
  small.lengths_q = {.max = queries, .total = queries};
  small.lengths_k = {.max = keys, .total = keys};
  small.scale = p.scale;
  if (p.causal) small.mask.right = hidden;
  small.num_splits = 1;
  small.q = {.row_stride = p.heads * p.head_dim, .head_stride = p.head_dim};
  small.k = small.v = {.row_stride = p.head_dim};
  small.o = {.row_stride = p.heads * kLatentValueDim, .head_stride = kLatentValueDim};
  small.lse = {.head_stride = queries, .row_stride = 1};
  return small;
}

// The tiled forward asks for no more where there are fewer queries or keys.
Status workspace_of(const MlaProblem& p, int64_t* bytes) {
  Plan plan{.wants_words = false};
  FA3_TRY(plan_forward(small_problem(p, queries_of_task(p), kKeysAtOnce, 0), &plan));
  *bytes = plan.workspace_bytes;
  return {};
}

Scratch carve(const MlaProblem& p, int64_t workspace_bytes, WorkspaceAllocator& allocator) {
  const int64_t queries = queries_of_task(p);
  return {.q = allocator.take<float>(queries, p.heads, p.head_dim),
          .k = allocator.take<float>(kKeysAtOnce, p.head_dim),
          .o = allocator.take<float>(queries, p.heads, kLatentValueDim),
          .lse = allocator.take<float>(queries, p.heads),
          .max = allocator.take<float>(queries, p.heads),
          .workspace = allocator.take<std::byte>(workspace_bytes)};
}

// Some queries of a sequence.
struct Task {
  int64_t b, first, count;
  Rows rows;     // of the sequence's queries
  int64_t keys;  // that the last query sees; of dense calls
};

void read_queries(const MlaProblem& p, const Task& task, float* q) {
  visit_dtype(p.dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < task.count * p.heads; ++i, q += p.head_dim) {
      const int64_t row = task.rows.begin + task.first + i / p.heads, head = i % p.heads;
      const int64_t own = p.head_dim - p.q_rope_dim;
      load_row(p.q.at<T>(task.b, row, head), own, q);
      if (p.q_rope_dim > 0) load_row(p.q_rope.at<T>(task.b, row, head), p.q_rope_dim, q + own);
    }
  });
}

// In sums of 16, which compilers keep in vectors.
float dot(const float* a, const float* b, int64_t dim) {
  constexpr int64_t kSums = 16;
  float sums[kSums] = {};
  for (int64_t c = 0; c < dim; c += kSums) {
    for (int64_t i = 0; i < kSums; ++i) sums[i] += a[c + i] * b[c + i];
  }
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

// The tiled forward keeps no maximum that could be asked for.
void raise_max(const MlaProblem& p, const Problem& small, const Scratch& scratch, int64_t queries,
               int64_t keys) {
  for (int64_t row = 0; row < queries; ++row) {
    const int64_t end = small.mask.keys_of(row, queries, keys).end;
    for (int64_t head = 0; head < p.heads; ++head) {
      float& max = scratch.max[head * queries + row];
      const float* const q = scratch.q + (row * p.heads + head) * p.head_dim;
      for (int64_t j = 0; j < end; ++j) {
        const float score = p.scale * dot(q, scratch.k + j * p.head_dim, p.head_dim);
        if (score > max || std::isnan(score)) max = score;
      }
    }
  }
}

// Attends to the keys that have been read, from what earlier ones gave.
Status attend(const MlaProblem& p, const Task& task, const Scratch& scratch, int64_t begin,
              int64_t keys) {
  Problem small = small_problem(p, task.count, keys, task.keys - (begin + keys));
  small.q.data = scratch.q;
  small.k.data = small.v.data = scratch.k;
  small.o.data = scratch.o;
  small.lse.data = scratch.lse;
  if (begin > 0) small.partial = {.on = true, .o = small.o, .lse = small.lse};
  if (p.max.data != nullptr) raise_max(p, small, scratch, task.count, keys);
  Plan plan{.wants_words = false};
  FA3_TRY(plan_forward(small, &plan));
  return run_forward(small, plan, scratch.workspace, nullptr);
}

void write_results(const MlaProblem& p, const Task& task, const Scratch& scratch) {
  visit_dtype(p.o.dtype, [&]<class T>(T) {
    for (int64_t i = 0; i < task.count * p.heads; ++i) {
      const int64_t query = i / p.heads, head = i % p.heads;
      const int64_t row = task.rows.begin + task.first + query, at = head * task.count + query;
      float* const o = scratch.o + i * kLatentValueDim;
      const float lse = scratch.lse[at];
      if (p.sink != nullptr) {
        const double factor = sink_factor(lse, p.sink[head]);
        for (int64_t c = 0; c < kLatentValueDim; ++c) o[c] = static_cast<float>(o[c] * factor);
      }
      store_row(o, kLatentValueDim, p.o.at<T>(task.b, row, head));
      if (p.lse.data != nullptr) *p.lse.at(task.b, head, row) = final_lse(p, lse, head);
      if (p.max.data != nullptr) *p.max.at(task.b, head, row) = scratch.max[at];
    }
  });
}

Status run_task(const MlaProblem& p, const Task& task, const Scratch& scratch) {
  read_queries(p, task, scratch.q);
  std::fill_n(scratch.o, task.count * p.heads * kLatentValueDim, 0.0f);
  std::fill_n(scratch.lse, task.count * p.heads, kNone);
  std::fill_n(scratch.max, task.count * p.heads, kNone);
  KeyWalk walk(p, task.b, task.first, task.keys);
  const LatentCache* cache = nullptr;
  int64_t begin = 0, keys = 0, slot = 0;
  while (walk.next(&cache, &slot)) {
    read_row(*cache, slot, scratch.k + keys++ * p.head_dim);
    if (keys < kKeysAtOnce) continue;
    FA3_TRY(attend(p, task, scratch, begin, keys));
    begin += keys;
    keys = 0;
  }
  if (keys > 0) FA3_TRY(attend(p, task, scratch, begin, keys));
  write_results(p, task, scratch);
  return {};
}

}  // namespace

Status plan_mla(const MlaProblem& p, Plan* plan) {
  int64_t bytes = 0;
  FA3_TRY(workspace_of(p, &bytes));
  plan->engine = "cpu";
  plan->num_threads = p.num_threads;
  plan->num_tasks = p.batch * ceil_div(p.lengths_q.max, queries_of_task(p));
  plan->workspace_bytes = bytes_of([&](WorkspaceAllocator& allocator) {
    take_thread_memory(allocator, p.num_threads,
                       [&](WorkspaceAllocator& thread) { carve(p, bytes, thread); });
  });
  if (plan->wants_words) {
    plan->kernel = "tiled, latent rows read as floats";
    plan->why =
        concat(queries_of_task(p), " queries of ", p.heads, " heads a task attend to ", kKeysAtOnce,
               " keys at a time; ", p.sparse ? "indices say which" : "pages say which");
  }
  return {};
}

Status run_mla(const MlaProblem& p, const Plan& plan, void* workspace, void*) {
  int64_t bytes = 0;
  FA3_TRY(workspace_of(p, &bytes));
  WorkspaceAllocator allocator(workspace);
  const auto describe = [&](WorkspaceAllocator& thread) { carve(p, bytes, thread); };
  const ThreadMemory threads = take_thread_memory(allocator, p.num_threads, describe);
  const int64_t queries = queries_of_task(p);
  const int64_t tasks_of_sequence = ceil_div(p.lengths_q.max, queries);
  parallel_for(plan.num_tasks, plan.num_threads, [&](int64_t index, int worker) {
    Task task{.b = index / tasks_of_sequence, .first = index % tasks_of_sequence * queries};
    task.rows = p.lengths_q.rows_of(task.b);
    task.count = std::min(queries, task.rows.used - task.first);
    if (task.count <= 0) return;
    if (!p.sparse) {
      const int64_t behind = p.causal ? task.rows.used - (task.first + task.count) : 0;
      task.keys = std::max<int64_t>(p.lengths_k.rows_of(task.b).used - behind, 0);
    }
    WorkspaceAllocator thread = threads[worker];
    const Status done = run_task(p, task, carve(p, bytes, thread));
    static_cast<void>(done);  // the tiled forward's plan refuses none of these
  });
  fill_unowned_rows(p);
  return {};
}

}  // namespace fa3::cpu
