// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/forward.h"

#include <algorithm>
#include <atomic>

#include "core/block_range.h"
#include "engine/cpu/isa.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/plan_forward.h"
#include "engine/cpu/rows.h"

namespace fa3::cpu {
namespace {

// What one call works on.
struct Run {
  const Problem& problem;
  const Kernels& kernels;
  TileShape shape;
  int64_t block_q;
  ForwardWorkspace workspace;
};

// Some rows of one key head of one sequence, against one part of the keys.
struct BlockTask {
  int64_t sequence;
  int64_t kv_head;
  int64_t part;
  int64_t first_row;
  int64_t num_rows;
};

KeyRange intersect(KeyRange a, KeyRange b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

// The task `index` of a sequence; the order is schedule.h's.
BlockTask block_task(const Run& run, const SequencePlan& plan, int64_t sequence, int64_t index) {
  const int64_t heads = run.problem.heads_k;
  if (plan.num_rows <= kSplitRows) {
    return {sequence, index % heads, index / heads, 0, plan.num_rows};
  }
  const int64_t num_blocks = (plan.num_rows + run.block_q - 1) / run.block_q;
  const int64_t first_row = (num_blocks - 1 - index / heads) * run.block_q;
  return {sequence, index % heads, 0, first_row, std::min(run.block_q, plan.num_rows - first_row)};
}

// Which keys of `part` each row, and each group of rows, sees.
void describe_visibility(const Problem& problem, const SequencePlan& plan, const BlockTask& task,
                         KeyRange part, int64_t padded_rows, const ThreadScratch& thread) {
  const int64_t seqlen_q = plan.q_rows.used;
  const int64_t seqlen_k = plan.k_rows.used;
  const auto position = [&](int64_t row) {
    return (task.first_row + std::min(row, task.num_rows - 1)) / problem.group();
  };
  for (int64_t r = 0; r < padded_rows; ++r) {
    thread.row_keys[r] = intersect(problem.mask.keys_of(position(r), seqlen_q, seqlen_k), part);
  }
  for (int64_t r = 0; r < padded_rows; r += kRowsPerGroup) {
    const BlockRange range = block_range(problem.mask, position(r),
                                         position(r + kRowsPerGroup - 1) + 1, seqlen_q, seqlen_k);
    thread.group_keys[r / kRowsPerGroup] = {intersect(range.visible, part),
                                            intersect(range.free, part)};
  }
}

RowQuantization row_quantization(const Quantization& of, int64_t sequence, int64_t head) {
  static constexpr float kOne = 1.0f;
  const Descales<const float>& descale = of.descale;
  return {.descale = descale.data == nullptr ? &kOne : descale.at(sequence, head, 0),
          .block_stride = descale.block_stride,
          .mean = of.mean_at(sequence, head)};
}

// The block's query rows of any type as floats; padding rows are zero.
void pack_queries(const Run& run, const SequencePlan& plan, const BlockTask& task,
                  const BlockJob& job) {
  const Problem& problem = run.problem;
  const int64_t stride = run.shape.q_stride;
  for (int64_t r = 0; r < task.num_rows; ++r) {
    const int64_t row = (task.first_row + r) / problem.group();
    const int64_t head = task.kv_head * problem.group() + (task.first_row + r) % problem.group();
    float* packed = job.buffers.q + r * stride;
    run.kernels.load_rows[kernel_index(problem.dtype)](
        problem.q.address(task.sequence, plan.q_rows.begin + row, head), 0, 1, problem.head_dim,
        packed);
    if (problem.dtype != DType::float8_e4m3) continue;
    const float scale = problem.q_quantization.scale_at(task.sequence, head, row);
    for (int64_t c = 0; c < problem.head_dim; ++c) packed[c] *= scale;
  }
  std::fill(job.buffers.q + task.num_rows * stride, job.buffers.q + job.padded_rows * stride, 0.0f);
}

BlockJob block_job(const Run& run, const SequencePlan& plan, const BlockTask& task,
                   const ThreadScratch& thread) {
  const Problem& problem = run.problem;
  const int64_t first_head = task.kv_head * problem.group();
  BlockJob job;
  job.head_dim = problem.head_dim;
  job.head_dim_v = problem.head_dim_v;
  job.scale = problem.scale;
  job.softcap = problem.softcap;
  const bool paged = problem.key_places.paged();
  const int64_t entry = paged ? 0 : problem.key_places.entry_of(task.sequence);
  const int64_t first_key = paged ? 0 : plan.k_rows.begin;
  job.q = problem.q.address(task.sequence, plan.q_rows.begin, first_head);
  job.k = problem.k.address(entry, first_key, task.kv_head);
  job.v = problem.v.address(entry, first_key, task.kv_head);
  job.q_row_stride = problem.q.row_stride;
  job.q_head_stride = problem.q.head_stride;
  job.k_row_stride = problem.k.row_stride;
  job.v_row_stride = problem.v.row_stride;
  if (problem.key_places.paged()) {
    job.pages = {.numbers = problem.key_places.pages_of(task.sequence),
                 .rows = problem.key_places.page_size,
                 .first_row = plan.k_rows.begin,
                 .k_stride = problem.k.batch_stride,
                 .v_stride = problem.v.batch_stride};
  }
  job.group = problem.group();
  job.first_row = task.first_row;
  job.num_rows = task.num_rows;
  job.padded_rows = round_up(task.num_rows, kRowsPerGroup);
  job.row_keys = thread.row_keys;
  job.group_keys = thread.group_keys;
  job.block_k = run.shape.block_k;
  job.buffers = thread.buffers;
  if (problem.has_e4m3()) {
    job.k_quantization = row_quantization(problem.k_quantization, task.sequence, task.kv_head);
    job.v_quantization = row_quantization(problem.v_quantization, task.sequence, task.kv_head);
    pack_queries(run, plan, task, job);
  }
  return job;
}

void write_rows(const Run& run, const SequencePlan& plan, const BlockTask& task,
                const PartialRows& parts, int64_t part_floats) {
  const Problem& problem = run.problem;
  const int64_t first_head = task.kv_head * problem.group();
  WriteJob job;
  job.parts = parts;
  job.part_floats = part_floats;
  job.num_parts = plan.num_parts;
  job.group = problem.group();
  job.first_row = task.first_row;
  job.num_rows = task.num_rows;
  job.head_dim_v = problem.head_dim_v;
  job.o = problem.o.address(task.sequence, plan.q_rows.begin, first_head);
  job.o_row_stride = problem.o.row_stride;
  job.o_head_stride = problem.o.head_stride;
  if (problem.lse.data != nullptr) {
    job.lse = problem.lse.at(task.sequence, first_head, plan.q_rows.begin);
    job.lse_row_stride = problem.lse.row_stride;
    job.lse_head_stride = problem.lse.head_stride;
  }
  if (problem.sink != nullptr) job.sink = problem.sink + first_head;
  run.kernels.write_rows[kernel_index(problem.o.dtype)](job);
}

// Whether this part was the last of its head to finish.
bool is_last_part(const Run& run, const SequencePlan& plan, const BlockTask& task) {
  int32_t& done = run.workspace.parts_done[task.sequence * run.problem.heads_k + task.kv_head];
  return std::atomic_ref(done).fetch_add(1, std::memory_order_acq_rel) == plan.num_parts - 1;
}

void run_task(const Run& run, const SequenceTasks& tasks, int64_t index, int worker) {
  const SequencePlan plan = plan_sequence(run.problem, tasks.sequence);
  const BlockTask task = block_task(run, plan, tasks.sequence, index);
  Carver carver = run.workspace.threads[worker];
  const ThreadScratch thread =
      carve_thread(run.shape, run.problem, run.workspace.rows_per_thread, carver);

  BlockJob job = block_job(run, plan, task, thread);
  describe_visibility(run.problem, plan, task, plan.part(task.part), job.padded_rows, thread);
  const int64_t part_floats = partial_floats(job.padded_rows, run.shape.o_columns);
  float* parts = thread.partial;
  if (plan.num_parts > 1) {
    parts =
        run.workspace.partials + tasks.first_partial + task.kv_head * plan.num_parts * part_floats;
  }
  job.result = partial_rows(parts + task.part * part_floats, job.padded_rows, run.shape.o_columns);
  const int dtype = kernel_index(run.problem.kv_dtype);
  (plan.streams ? run.kernels.attend_rows : run.kernels.attend_block)[dtype](job);

  if (plan.num_parts > 1 && !is_last_part(run, plan, task)) return;
  write_rows(run, plan, task, partial_rows(parts, job.padded_rows, run.shape.o_columns),
             part_floats);
}

}  // namespace

Status run_forward(const Problem& problem, const Plan& plan, void* workspace, void*) {
  TileShape shape = tile_shape(problem);
  shape.block_k = plan.block_k;
  Carver carver(workspace);
  const Run run = {.problem = problem,
                   .kernels = kernels(),
                   .shape = shape,
                   .block_q = plan.block_q,
                   .workspace = carve_forward(problem, shape, carver)};
  const Schedule schedule(problem, run.shape, run.block_q, run.workspace.sequences);
  if (run.workspace.parts_done != nullptr) {
    std::fill_n(run.workspace.parts_done, problem.batch * problem.heads_k, 0);
  }
  parallel_for(plan.num_tasks, plan.num_threads, [&](int64_t task, int worker) {
    const SequenceTasks tasks = schedule.find(task);
    run_task(run, tasks, task - tasks.first_task, worker);
  });
  zero_unused_rows(problem.o, problem.lengths_q, problem.batch, problem.heads_q,
                   problem.head_dim_v);
  fill_unused_lse(problem.lse, problem.lengths_q, problem.batch, problem.heads_q);
  return {};
}

}  // namespace fa3::cpu
