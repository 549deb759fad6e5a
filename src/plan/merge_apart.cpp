// SPDX-License-Identifier: Apache-2.0
#include "plan/merge_apart.h"

#include "core/error.h"
#include "core/macros.h"
#include "core/workspace.h"

namespace fa3 {
namespace {

// Rows begin at multiples of 16 bytes, as GPUs want them.
constexpr int64_t kColumnStep = 4;

// The rows of a tensor of queries: a packed one is one batch entry.
struct Extents {
  int64_t batch, rows;
};
Extents extents_of(const Problem& p) {
  return p.lengths_q.in_one_tensor ? Extents{1, p.lengths_q.total}
                                   : Extents{p.batch, p.lengths_q.max};
}

struct Part {
  float* o;
  float* lse;
};
Part carve(const Problem& p, WorkspaceAllocator& allocator) {
  const auto [batch, rows] = extents_of(p);
  const int64_t columns = (p.head_dim_v + kColumnStep - 1) / kColumnStep * kColumnStep;
  return {allocator.take<float>(batch, rows, p.heads_q, columns),
          allocator.take<float>(batch, p.heads_q, rows)};
}

// The call without what it goes on from; its result is `part`.
Problem own_part_of(const Problem& p, const Part& part) {
  const auto [batch, rows] = extents_of(p);
  const int64_t columns = (p.head_dim_v + kColumnStep - 1) / kColumnStep * kColumnStep;
  Problem own = p;
  own.partial = {};
  own.o = {.data = part.o,
           .dtype = DType::float32,
           .batch_stride = batch > 1 ? rows * p.heads_q * columns : 0,
           .row_stride = p.heads_q * columns,
           .head_stride = columns};
  own.lse = {.data = part.lse,
             .batch_stride = batch > 1 ? p.heads_q * rows : 0,
             .head_stride = rows,
             .row_stride = 1};
  return own;
}

Status merge(const Problem& p, const Problem& own, void* stream) {
  const auto [batch, rows] = extents_of(p);
  const MergeProblem merge{.num_partials = 1,
                           .batch = batch,
                           .rows = rows,
                           .heads = p.heads_q,
                           .head_dim_v = p.head_dim_v,
                           .o_partial = own.o,
                           .lse_partial = own.lse,
                           .o = p.o,
                           .lse = p.lse,
                           .device = p.device,
                           .device_index = p.device_index,
                           .num_threads = p.num_threads,
                           .other = p.partial};
  for (const Engine* engine : engines()) {
    if (engine->memory == p.device && engine->run_merge != nullptr) {
      return engine->run_merge(merge, stream);
    }
  }
  return unsupported("o_partial: no engine of this build merges partial results in this memory");
}

}  // namespace

Status plan_apart(const Engine& engine, const Problem& problem, Plan* plan) {
  FA3_TRY(engine.plan_forward(own_part_of(problem, {}), plan));
  constexpr int64_t kAlignment = 256;
  plan->part_offset = (plan->workspace_bytes + kAlignment - 1) / kAlignment * kAlignment;
  plan->workspace_bytes = plan->part_offset + bytes_of([&](WorkspaceAllocator& allocator) {
                            carve(problem, allocator);
                          });
  if (plan->wants_words) plan->why += "; merged with the partial result afterwards";
  return {};
}

Status run_apart(const Engine& engine, const Problem& problem, const Plan& plan, void* workspace,
                 void* stream) {
  const auto [batch, rows] = extents_of(problem);
  if (batch == 0 || rows == 0) return {};
  WorkspaceAllocator allocator(static_cast<std::byte*>(workspace) + plan.part_offset);
  const Problem own = own_part_of(problem, carve(problem, allocator));
  Plan with_memory{.wants_words = false};  // plans may hold addresses
  FA3_TRY(engine.plan_forward(own, &with_memory));
  FA3_TRY(engine.run_forward(own, with_memory, workspace, stream));
  return merge(problem, own, stream);
}

}  // namespace fa3
