// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/tiled/schedule.h"

#include <algorithm>

#include "core/mask/block_range.h"
#include "engine/cpu/kernels/isa.h"

namespace fa3::cpu {
namespace {

// In (b, s, h, d) memory the heads of a key lie side by side: read one head after the other they
// cost a page walk for each row, and what the hardware prefetches beyond a row comes too early. So
// a task takes several, as long as there are enough tasks.
int64_t choose_heads_together(const Problem& problem, const SequencePlan& plan) {
  constexpr int64_t kTasksPerThread = 4;
  if (!plan.streams || problem.k.head_stride >= problem.k.row_stride) return 1;
  int64_t heads = std::min({problem.heads_k, kMaxHeadsTogether, kSplitRows / plan.num_rows});
  const auto tasks = [&] {
    return capped_product(problem.batch, plan.num_parts) * ceil_div(problem.heads_k, heads);
  };
  while (heads > 1 && tasks() < kTasksPerThread * problem.num_threads) heads = ceil_div(heads, 2);
  return heads;
}

int64_t task_count(const Problem& problem, const SequencePlan& plan, int64_t block_q) {
  if (plan.num_rows == 0) return 0;
  if (plan.num_rows <= kSplitRows) {
    return ceil_div(problem.heads_k, plan.heads_together) * plan.num_parts;
  }
  return problem.heads_k * ceil_div(plan.num_rows, block_q);
}

int64_t task_cost(const SequencePlan& plan, int64_t block_q) {
  const int64_t visible = std::max<int64_t>(plan.visible.end - plan.visible.begin, 0);
  return std::min(plan.num_rows, block_q) * plan.heads_together *
         (plan.num_parts > 1 ? plan.part_keys : visible);
}

bool alike(const Problem& problem) {
  return problem.lengths_q.alike() && problem.lengths_k.alike();
}

}  // namespace

KeyRange SequencePlan::part(int64_t index) const {
  if (num_parts == 1) return visible;
  const int64_t first = visible.begin / kMaxBlockK * kMaxBlockK + index * part_keys;
  return {std::max(visible.begin, first), std::min(visible.end, first + part_keys)};
}

SequencePlan plan_sequence(const Problem& problem, int64_t sequence) {
  SequencePlan plan;
  plan.q_rows = problem.lengths_q.rows_of(sequence);
  plan.k_rows = problem.lengths_k.rows_of(sequence);
  plan.num_rows = plan.q_rows.used * problem.group();
  if (plan.num_rows == 0) return plan;
  plan.visible =
      block_range(problem.mask, 0, plan.q_rows.used, plan.q_rows.used, plan.k_rows.used).visible;
  // Only packed tiles are cut into blocks of a mask.
  plan.streams = !problem.block_mask.on &&
                 plan.num_rows <= kernels().group_shape[kernel_index(problem.kv_dtype)].stream_rows;
  if (plan.num_rows <= kSplitRows && !plan.visible.empty()) {
    const int64_t from = plan.visible.begin / kMaxBlockK * kMaxBlockK;
    plan.part_keys = part_keys(plan.visible.end - from, problem.num_splits);
    plan.num_parts = num_parts(plan.visible.end - from, problem.num_splits);
  }
  plan.heads_together = choose_heads_together(problem, plan);
  return plan;
}

Totals count_tasks(const Problem& problem, int64_t block_q) {
  Totals totals;
  const int64_t different = alike(problem) ? std::min<int64_t>(problem.batch, 1) : problem.batch;
  for (int64_t b = 0; b < different; ++b) {
    const SequencePlan plan = plan_sequence(problem, b);
    totals.num_tasks += task_count(problem, plan, block_q);
    totals.max_parts = std::max(totals.max_parts, plan.num_parts);
  }
  if (alike(problem)) totals.num_tasks *= problem.batch;
  return totals;
}

Schedule::Schedule(const Problem& problem, const TileShape& shape, int64_t block_q,
                   SequenceTasks* table)
    : batch_(problem.batch) {
  const auto tasks_of = [&](int64_t sequence, int64_t* floats) -> SequenceTasks {
    const SequencePlan plan = plan_sequence(problem, sequence);
    *floats =
        plan.num_parts == 1
            ? 0
            : problem.heads_k * plan.num_parts *
                  partial_floats(round_up(plan.num_rows, shape.rows_per_group), shape.o_columns);
    return {.sequence = sequence,
            .num_tasks = task_count(problem, plan, block_q),
            .cost = task_cost(plan, block_q)};
  };
  if (batch_ == 0) return;
  if (alike(problem)) {
    first_ = tasks_of(0, &partial_floats_);
    return;
  }
  int64_t first_partial = 0;
  for (int64_t b = 0; b < batch_; ++b) {
    int64_t floats = 0;
    table[b] = tasks_of(b, &floats);
    table[b].first_partial = first_partial;
    first_partial += floats;
  }
  std::sort(table, table + batch_, [](const SequenceTasks& a, const SequenceTasks& b) {
    return a.cost != b.cost ? a.cost > b.cost : a.sequence < b.sequence;
  });
  int64_t first_task = 0;
  for (int64_t i = 0; i < batch_; ++i) {
    table[i].first_task = first_task;
    first_task += table[i].num_tasks;
  }
  table_ = table;
}

SequenceTasks Schedule::find(int64_t task) const {
  if (table_ == nullptr) {
    SequenceTasks tasks = first_;
    tasks.sequence = task / first_.num_tasks;
    tasks.first_task = tasks.sequence * first_.num_tasks;
    tasks.first_partial = tasks.sequence * partial_floats_;
    return tasks;
  }
  return std::upper_bound(
      table_, table_ + batch_, task,
      [](int64_t wanted, const SequenceTasks& entry) { return wanted < entry.first_task; })[-1];
}

int64_t partials_bound(const Problem& problem, const TileShape& shape) {
  if (problem.batch == 0) return 0;
  const int64_t max_rows = problem.lengths_q.max * problem.group();
  int64_t parts = std::min(
      problem.batch * kMaxParts,
      problem.batch + (problem.lengths_k.total + problem.batch * kMaxBlockK) / kMinPartKeys);
  if (problem.num_splits > 0) parts = problem.batch * problem.num_splits;
  if (!problem.lengths_q.varlen && !problem.lengths_k.varlen) {
    parts = problem.batch * plan_sequence(problem, 0).num_parts;
    if (parts == problem.batch) return 0;
  } else if (!problem.lengths_q.varlen && max_rows > kSplitRows) {
    return 0;
  }
  return capped_product(
      problem.heads_k, parts,
      partial_floats(round_up(std::min(max_rows, kSplitRows), shape.rows_per_group),
                     shape.o_columns));
}

}  // namespace fa3::cpu
