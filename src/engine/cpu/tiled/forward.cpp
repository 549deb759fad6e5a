// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/tiled/tiled.h"

#include <algorithm>
#include <atomic>

#include "core/mask/block_range.h"
#include "engine/cpu/kernels/dropout_parts.h"
#include "engine/cpu/kernels/isa.h"
#include "engine/cpu/machine/parallel.h"
#include "engine/cpu/rows.h"
#include "engine/cpu/tiled/plan_forward.h"

namespace fa3::cpu {
namespace {

// What one call works on.
struct Run {
  const Problem& problem;
  const Kernels& kernels;
  TileShape shape;
  int64_t block_q;
  ForwardWorkspace workspace;
  PhiloxKey dropout_key;
};

// Some rows of one key head (or of several, where keys are streamed) of one sequence, against one
// part of the keys.
struct BlockTask {
  int64_t sequence;
  int64_t kv_head, num_heads;
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
    const int64_t groups = ceil_div(heads, plan.heads_together);
    const int64_t head = index % groups * plan.heads_together;
    return {.sequence = sequence,
            .kv_head = head,
            .num_heads = std::min(plan.heads_together, heads - head),
            .part = index / groups,
            .first_row = 0,
            .num_rows = plan.num_rows};
  }
  const int64_t num_blocks = ceil_div(plan.num_rows, run.block_q);
  const int64_t first_row = (num_blocks - 1 - index / heads) * run.block_q;
  return {.sequence = sequence,
          .kv_head = index % heads,
          .num_heads = 1,
          .part = 0,
          .first_row = first_row,
          .num_rows = std::min(run.block_q, plan.num_rows - first_row)};
}

// Which keys of `part` each row, and each group of rows, sees.
void describe_visibility(const Problem& problem, const SequencePlan& plan, const BlockTask& task,
                         KeyRange part, int64_t rows_per_group, int64_t padded_rows,
                         const ThreadScratch& thread) {
  const int64_t seqlen_q = plan.q_rows.used;
  const int64_t seqlen_k = plan.k_rows.used;
  const auto position = [&](int64_t row) {
    return (task.first_row + std::min(row, task.num_rows - 1)) / problem.group();
  };
  for (int64_t r = 0; r < padded_rows; ++r) {
    thread.row_keys[r] = intersect(problem.mask.keys_of(position(r), seqlen_q, seqlen_k), part);
  }
  for (int64_t r = 0; r < padded_rows; r += rows_per_group) {
    const BlockRange range = block_range(problem.mask, position(r),
                                         position(r + rows_per_group - 1) + 1, seqlen_q, seqlen_k);
    thread.group_keys[r / rows_per_group] = {intersect(range.visible, part),
                                             intersect(range.free, part)};
  }
}

RowQuantization row_quantization(const Quantization& of, DType dtype, int64_t sequence,
                                 int64_t head) {
  static constexpr float kOne = 1.0f;
  const Descales<const float>& descale = of.descale;
  return {.is_e5m2 = dtype == DType::float8_e5m2,
          .descale = descale.data == nullptr ? &kOne : descale.at(sequence, head, 0),
          .block_stride = descale.block_stride,
          .mean = of.mean_at(sequence, head)};
}

// The block's query rows of any type as floats; padding rows are zero.
void pack_queries(const Run& run, const SequencePlan& plan, const BlockTask& task, int64_t kv_head,
                  const BlockJob& job) {
  const Problem& problem = run.problem;
  const int64_t stride = run.shape.q_stride;
  for (int64_t r = 0; r < task.num_rows; ++r) {
    const int64_t row = (task.first_row + r) / problem.group();
    const int64_t head = kv_head * problem.group() + (task.first_row + r) % problem.group();
    float* packed = job.buffers.q + r * stride;
    run.kernels.load_row[kernel_index(problem.dtype)](
        problem.q.address(task.sequence, plan.q_rows.begin + row, head), problem.head_dim, packed);
    if (problem.dtype != DType::float8_e4m3) continue;
    const float scale = problem.q_quantization.scale_at(task.sequence, head, row);
    for (int64_t c = 0; c < problem.head_dim; ++c) packed[c] *= scale;
  }
  std::fill(job.buffers.q + task.num_rows * stride, job.buffers.q + job.padded_rows * stride, 0.0f);
}

// The parts of the generator for the task's rows of one key head.
DropoutJob describe_dropout(const Run& run, const BlockTask& task, int64_t kv_head,
                            DropoutRowPart* rows) {
  const int64_t group = run.problem.group();
  for (int64_t r = 0; r < task.num_rows; ++r) {
    const int64_t row = task.first_row + r;
    const DropoutHead head =
        run.problem.dropout.head(run.dropout_key, task.sequence, kv_head * group + row % group);
    rows[r] = dropout_row_part(run.problem.dropout, head, row / group);
  }
  return dropout_job(run.problem.dropout, run.dropout_key, task.sequence, rows);
}

// Which blocks of keys the rows of the task's key head see; padding rows repeat the last one.
const MaskRow* describe_block_mask(const Problem& problem, const BlockTask& task, int64_t kv_head,
                                   int64_t padded_rows, MaskRow* rows) {
  if (!problem.block_mask.on) return nullptr;
  const int64_t group = problem.group();
  for (int64_t r = 0; r < padded_rows; ++r) {
    const int64_t row = task.first_row + std::min(r, task.num_rows - 1);
    rows[r] =
        mask_row(problem.block_mask, task.sequence, kv_head * group + row % group, row / group);
  }
  return rows;
}

PackedTiles packed_tiles(const Run& run, int64_t sequence, int64_t kv_head) {
  if (run.workspace.packed == nullptr) return {};
  const int64_t head = sequence * run.problem.heads_k + kv_head;
  float* const first = run.workspace.packed + head * run.workspace.packed_per_head;
  return {.k = first, .v = first + run.shape.key_floats(), .stride = run.shape.tile_floats()};
}

ThreadScratch scratch_of(const Run& run, int worker) {
  WorkspaceAllocator allocator = run.workspace.threads[worker];
  return carve_thread(run.shape, run.problem, run.workspace.rows_per_thread, allocator);
}

// For the task's head `index`.
BlockJob block_job(const Run& run, const SequencePlan& plan, const BlockTask& task, int64_t index,
                   const ThreadScratch& thread) {
  const Problem& problem = run.problem;
  const int64_t kv_head = task.kv_head + index;
  const int64_t first_head = kv_head * problem.group();
  BlockJob job;
  job.head_dim = problem.head_dim;
  job.head_dim_v = problem.head_dim_v;
  job.scale = problem.scale;
  job.softcap = problem.softcap;
  const bool paged = problem.key_places.paged();
  const int64_t entry = paged ? 0 : problem.key_places.entry_of(task.sequence);
  const int64_t first_key = paged ? 0 : plan.k_rows.begin;
  job.q = problem.q.address(task.sequence, plan.q_rows.begin, first_head);
  job.k = problem.k.address(entry, first_key, kv_head);
  job.v = problem.v.address(entry, first_key, kv_head);
  job.q_row_stride = problem.q.row_stride;
  job.q_head_stride = problem.q.head_stride;
  job.k_row_stride = problem.k.row_stride;
  job.v_row_stride = problem.v.row_stride;
  if (paged) {
    job.pages = {.numbers = problem.key_places.pages_of(task.sequence),
                 .rows = problem.key_places.page_size,
                 .first_row = plan.k_rows.begin,
                 .k_stride = problem.k.batch_stride,
                 .v_stride = problem.v.batch_stride};
  }
  job.group = problem.group();
  job.first_row = task.first_row;
  job.num_rows = task.num_rows;
  job.padded_rows =
      plan.streams ? task.num_rows : round_up(task.num_rows, run.shape.rows_per_group);
  job.row_keys = thread.row_keys;
  job.group_keys = thread.group_keys;
  job.mask_rows = describe_block_mask(problem, task, kv_head, job.padded_rows, thread.mask);
  job.block_k = run.shape.block_k;
  job.packed = packed_tiles(run, task.sequence, kv_head);
  job.buffers = thread.buffers;
  const int64_t row = index * job.padded_rows;
  job.buffers.q += index * round_up(job.padded_rows, kMaxLanes) * run.shape.q_stride;
  job.buffers.sum_lanes += row * kMaxLanes;
  job.buffers.divisor_lanes += row * kMaxLanes;
  if (job.buffers.largest != nullptr) job.buffers.largest += row;
  if (problem.dropout.on())
    job.dropout = describe_dropout(run, task, kv_head, thread.dropout + row);
  if (problem.has_float8()) {
    const auto quantization = [&](const Quantization& of) {
      return row_quantization(of, problem.kv_dtype, task.sequence, kv_head);
    };
    job.k_quantization = quantization(problem.k_quantization);
    job.v_quantization = quantization(problem.v_quantization);
    pack_queries(run, plan, task, kv_head, job);
  }
  return job;
}

void write_rows(const Run& run, const SequencePlan& plan, const BlockTask& task, int64_t index,
                const PartialRows& parts, int64_t part_floats) {
  const Problem& problem = run.problem;
  const int64_t first_head = (task.kv_head + index) * problem.group();
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
  job.scale = static_cast<float>(problem.dropout.scale());
  if (const OutputGate& gate = problem.gate; gate.on) {
    job.gate = {.logits = gate.logits.address(task.sequence, plan.q_rows.begin, first_head),
                .dtype = kernel_index(gate.logits.dtype),
                .per_row = gate.per_row,
                .row_stride = gate.logits.row_stride,
                .head_stride = gate.logits.head_stride};
  }
  if (const PartialResult& from = problem.partial; from.on) {
    job.o_partial = from.o.at<float>(task.sequence, plan.q_rows.begin, first_head);
    job.o_partial_row_stride = from.o.row_stride;
    job.o_partial_head_stride = from.o.head_stride;
    job.lse_partial = from.lse.at(task.sequence, first_head, plan.q_rows.begin);
    job.lse_partial_row_stride = from.lse.row_stride;
    job.lse_partial_head_stride = from.lse.head_stride;
  }
  run.kernels.write_rows[kernel_index(problem.o.dtype)](job);
}

// Raises those of the heads whose rows the job has; other tasks do so too.
void raise_max_logits(const Problem& problem, int64_t sequence, int64_t kv_head,
                      const BlockJob& job) {
  if (!problem.max_logit.on) return;
  for (int64_t r = 0; r < job.num_rows; ++r) {
    const int64_t head = kv_head * problem.group() + (job.first_row + r) % problem.group();
    raise_max_logit(problem.max_logit.at(sequence, head), problem.scale * job.buffers.largest[r]);
  }
}

// Whether this part was the last of the task's head `index` to finish.
bool is_last_part(const Run& run, const SequencePlan& plan, const BlockTask& task, int64_t index) {
  const int64_t head = task.sequence * run.problem.heads_k + task.kv_head + index;
  int32_t& done = run.workspace.parts_done[head];
  return std::atomic_ref(done).fetch_add(1, std::memory_order_acq_rel) == plan.num_parts - 1;
}

// Packs every tile that some query sees, for the blocks that share it. Sequences are alike.
void pack_tiles(const Run& run, int num_threads) {
  const Problem& problem = run.problem;
  const int64_t block_k = run.shape.block_k;
  const SequencePlan plan = plan_sequence(problem, 0);
  if (plan.visible.empty()) return;
  const int64_t first = plan.visible.begin / block_k;
  const int64_t tiles = ceil_div(plan.visible.end, block_k) - first;
  parallel_for(problem.batch * problem.heads_k * tiles, num_threads, [&](int64_t task, int worker) {
    const int64_t head = task / tiles, tile = first + task % tiles;
    const BlockTask no_rows = {.sequence = head / problem.heads_k,
                               .kv_head = head % problem.heads_k};
    BlockJob job = block_job(run, plan, no_rows, 0, scratch_of(run, worker));
    job.buffers.k = job.packed.k + tile * job.packed.stride;
    job.buffers.v = job.packed.v + tile * job.packed.stride;
    const int64_t end = std::min((tile + 1) * block_k, plan.visible.end);
    run.kernels.pack_tile[kernel_index(problem.kv_dtype)](job, tile * block_k, end, end);
  });
}

void run_task(const Run& run, const SequenceTasks& tasks, int64_t index, int worker) {
  const SequencePlan plan = plan_sequence(run.problem, tasks.sequence);
  const BlockTask task = block_task(run, plan, tasks.sequence, index);
  const ThreadScratch thread = scratch_of(run, worker);

  BlockJob jobs[kMaxHeadsTogether];
  float* parts[kMaxHeadsTogether];
  for (int64_t i = 0; i < task.num_heads; ++i) {
    jobs[i] = block_job(run, plan, task, i, thread);
  }
  const int64_t rows = jobs[0].padded_rows;
  const int64_t part_floats = partial_floats(rows, run.shape.o_columns);
  describe_visibility(run.problem, plan, task, plan.part(task.part), run.shape.rows_per_group, rows,
                      thread);
  for (int64_t i = 0; i < task.num_heads; ++i) {
    parts[i] = plan.num_parts == 1 ? thread.partial + i * part_floats
                                   : run.workspace.partials + tasks.first_partial +
                                         (task.kv_head + i) * plan.num_parts * part_floats;
    jobs[i].result = partial_rows(parts[i] + task.part * part_floats, rows, run.shape.o_columns);
  }
  const int dtype = kernel_index(run.problem.kv_dtype);
  if (plan.streams) {
    run.kernels.attend_rows[dtype](jobs, task.num_heads);
  } else {
    run.kernels.attend_block[dtype](jobs[0]);
  }
  for (int64_t i = 0; i < task.num_heads; ++i) {
    raise_max_logits(run.problem, task.sequence, task.kv_head + i, jobs[i]);
    if (plan.num_parts > 1 && !is_last_part(run, plan, task, i)) continue;
    write_rows(run, plan, task, i, partial_rows(parts[i], rows, run.shape.o_columns), part_floats);
  }
}

}  // namespace

Status run_forward(const Problem& problem, const Plan& plan, void* workspace, void*) {
  TileShape shape = forward_tile_shape(problem);
  shape.block_k = plan.block_k;
  WorkspaceAllocator allocator(workspace);
  const Run run = {.problem = problem,
                   .kernels = kernels(),
                   .shape = shape,
                   .block_q = plan.block_q,
                   .workspace = carve_forward(problem, shape, allocator),
                   .dropout_key = call_key(problem.dropout)};
  const Schedule schedule(problem, run.shape, run.block_q, run.workspace.sequences);
  if (run.workspace.parts_done != nullptr) {
    std::fill_n(run.workspace.parts_done, problem.batch * problem.heads_k, 0);
  }
  clear_max_logit(problem);
  if (run.workspace.packed != nullptr) pack_tiles(run, plan.num_threads);
  parallel_for(plan.num_tasks, plan.num_threads, [&](int64_t task, int worker) {
    const SequenceTasks tasks = schedule.find(task);
    run_task(run, tasks, task - tasks.first_task, worker);
  });
  if (problem.partial.on) {
    keep_unused_rows(problem);
    return {};
  }
  fill_unused_results(problem);
  return {};
}

}  // namespace fa3::cpu
