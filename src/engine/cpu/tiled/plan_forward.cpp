// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/tiled/plan_forward.h"

#include <algorithm>

#include "core/error.h"
#include "engine/cpu/kernels/dropout_parts.h"
#include "engine/cpu/kernels/isa.h"

namespace fa3::cpu {
namespace {

// Several tasks per thread, so that the last ones to finish leave little idle time; but fewer
// rather than blocks of less than kGoodBlockQ rows, where packing keys takes 5% of the work and
// more (16% at 64 rows, d128).
constexpr int64_t kTasksPerThread = 8, kLeastTasksPerThread = 2;
constexpr int64_t kGoodBlockQ = 256;

// Fewer rows of a key head take about as long as a loop over tasks takes to begin.
constexpr int64_t kLeastRowsPackedAhead = 1024;
// 64 MiB: more would not stay in the L3 cache.
constexpr int64_t kMostFloatsPackedAhead = 16 << 20;

int64_t packed_floats_per_head(const Problem& problem, const TileShape& shape) {
  return capped_product(ceil_div(problem.lengths_k.max, shape.block_k), shape.tile_floats());
}

// As many rows as the caches allow, fewer where that would leave threads without work. Grows with
// the longest sequence, so that a workspace query, which may not know it, is never too small.
int64_t block_q_bound(const Problem& problem, const TileShape& shape) {
  const int64_t max_rows = std::max<int64_t>(problem.lengths_q.max * problem.group(), 1);
  const int64_t all_rows = problem.lengths_q.total * problem.heads_q;
  int64_t balanced = all_rows / (kTasksPerThread * problem.num_threads);
  if (!packs_ahead(problem, shape)) {
    balanced = std::max(
        balanced, std::min(kGoodBlockQ, all_rows / (kLeastTasksPerThread * problem.num_threads)));
  }
  const int64_t rows =
      std::clamp(round_up(balanced, shape.rows_per_group), shape.min_block_q, shape.max_block_q);
  return std::min(rows, round_up(max_rows, shape.rows_per_group));
}

// Blocks of equal size.
int64_t choose_block_q(const Problem& problem, const TileShape& shape) {
  const int64_t max_rows = std::max<int64_t>(problem.lengths_q.max * problem.group(), 1);
  const int64_t bound = block_q_bound(problem, shape);
  const int64_t num_blocks = (max_rows + bound - 1) / bound;
  const int64_t rows = round_up((max_rows + num_blocks - 1) / num_blocks, shape.rows_per_group);
  return std::min(std::max(shape.min_block_q, rows), bound);
}

std::string arithmetic_of(const Problem& problem) {
  if (problem.has_float8()) {
    return concat(name_of(problem.kv_dtype), " turned into floats when keys and values are packed");
  }
  if (problem.dtype == DType::float32) return "float products";
  if (problem.dtype == DType::bfloat16 && kernels().bf16_products != nullptr) {
    return concat("bfloat16 products (", kernels().bf16_products, "), float sums");
  }
  return "operands widened to float when they are packed";
}

std::string reasons(const Problem& problem, const TileShape& shape, const Plan& plan) {
  std::string why = concat(arithmetic_of(problem), "; key tiles of ", shape.block_k, " x (",
                           problem.head_dim, " + ", problem.head_dim_v, ") stay in the L2 cache; ");
  if (problem.key_places.paged()) {
    why += concat("keys are gathered from pages of ", problem.key_places.page_size, " rows; ");
  }
  if (plan.num_splits > 1) {
    why += concat("few query rows, so keys are split into up to ", plan.num_splits,
                  " parts, merged in fixed order");
  } else {
    why += concat(problem.lengths_q.max * problem.group(), " rows per key head in blocks of up to ",
                  plan.block_q, " give ", plan.num_tasks, plan.num_tasks == 1 ? " task" : " tasks",
                  " for ", plan.num_threads, plan.num_threads == 1 ? " thread" : " threads");
    if (packs_ahead(problem, shape)) why += ", after keys and values were packed for all of them";
  }
  return why;
}

}  // namespace

bool packs_ahead(const Problem& problem, const TileShape& shape) {
  const int64_t rows = problem.lengths_q.max * problem.group();
  const int64_t all_rows = problem.lengths_q.total * problem.heads_q;
  const bool alike = !problem.lengths_q.varlen && !problem.lengths_k.varlen;
  return alike && problem.num_threads > 1 && rows >= kLeastRowsPackedAhead &&
         all_rows < kTasksPerThread * problem.num_threads * kGoodBlockQ &&
         capped_product(problem.batch, problem.heads_k, packed_floats_per_head(problem, shape)) <=
             kMostFloatsPackedAhead;
}

TileShape forward_tile_shape(const Problem& problem) {
  TileShape shape = tile_shape(problem.head_dim, problem.head_dim_v,
                               kernels().group_shape[kernel_index(problem.kv_dtype)]);
  shape.dequantizes = problem.has_float8();
  return shape;
}

ForwardWorkspace carve_forward(const Problem& problem, const TileShape& shape,
                               WorkspaceAllocator& allocator) {
  ForwardWorkspace workspace;
  const bool varlen = problem.lengths_q.varlen || problem.lengths_k.varlen;
  if (varlen) workspace.sequences = allocator.take<SequenceTasks>(problem.batch);
  const int64_t partials = partials_bound(problem, shape);
  if (partials > 0) workspace.parts_done = allocator.take<int32_t>(problem.batch, problem.heads_k);
  workspace.partials = allocator.take<float>(partials);
  if (packs_ahead(problem, shape)) {
    workspace.packed_per_head = packed_floats_per_head(problem, shape);
    workspace.packed =
        allocator.take<float>(problem.batch, problem.heads_k, workspace.packed_per_head);
  }
  workspace.rows_per_thread = std::max(block_q_bound(problem, shape), shape.min_block_q);
  workspace.threads =
      take_thread_memory(allocator, problem.num_threads, [&](WorkspaceAllocator& thread) {
        carve_thread(shape, problem, workspace.rows_per_thread, thread);
      });
  return workspace;
}

Status plan_forward(const Problem& problem, Plan* plan) {
  if (problem.v_transposed.on) {
    return unsupported("v_transposed, which tensor cores read; give v as fa3_quantize() writes it ",
                       "without transposed");
  }
  const TileShape shape = forward_tile_shape(problem);
  plan->engine = "cpu";
  plan->block_q = choose_block_q(problem, shape);
  plan->block_k = shape.block_k;
  plan->num_threads = problem.num_threads;
  const Totals totals = count_tasks(problem, plan->block_q);
  plan->num_tasks = totals.num_tasks;
  plan->num_splits = totals.max_parts;
  plan->workspace_bytes =
      bytes_of([&](WorkspaceAllocator& allocator) { carve_forward(problem, shape, allocator); });
  if (plan->wants_words) {
    plan->kernel = concat("tiled ", isa_name(), problem.block_mask.on ? ", block mask" : "",
                          dropout_suffix(problem.dropout));
    plan->why = reasons(problem, shape, *plan);
  }
  return {};
}

}  // namespace fa3::cpu
