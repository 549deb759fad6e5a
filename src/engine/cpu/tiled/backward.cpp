// SPDX-License-Identifier: Apache-2.0
//
// One pass over score tiles, as in FlashAttention-3's Algorithm 3: a block of keys stays, with its
// dK and dV in the cache, and the queries that see it stream by, block after block, each tile
// adding to dK, dV and dQ (simd/backward/gradient_products.h).
//
// A gradient with several writers would depend on timing. So the key blocks of a key head are dealt
// out to a number of parts that only the shape decides, each part is one task with a dQ of its own,
// and a last loop adds these up in their order. Interleaved blocks make parts equally long under a
// causal mask.
#include "engine/cpu/tiled/tiled.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/mask/block_range.h"
#include "engine/cpu/gate/gate.h"
#include "engine/cpu/kernels/dropout_parts.h"
#include "engine/cpu/kernels/isa.h"
#include "engine/cpu/machine/parallel.h"
#include "engine/cpu/rows.h"
#include "engine/cpu/tiled/tile_shape.h"

namespace fa3::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
// Tasks that any number of threads up to about this shares well. More would cost memory: each part
// of a head has its own dQ.
constexpr int64_t kWantedTasks = 32;

int64_t padded(int64_t columns) {
  return round_up(columns, kMaxLanes);
}

int64_t num_blocks(int64_t rows, int64_t block) {
  return (rows + block - 1) / block;
}

// The gradient kernels in use for the problem.
const GradientKernels& gradient_kernels(const BackwardProblem& problem) {
  const bool all_bf16 = problem.dtype == DType::bfloat16 && problem.d_o.dtype == DType::bfloat16;
  const Kernels& found = kernels();
  return all_bf16 && found.bf16_gradients != nullptr ? *found.bf16_gradients : found.gradients;
}

GradientShape gradient_shape(const BackwardProblem& problem) {
  return gradient_kernels(problem).shape;
}

// Parts of a sequence's key blocks; the longest sequence decides for all. Where it has fewer
// blocks, or another sequence has, every block is a part, whatever their number.
int64_t count_parts(const BackwardProblem& problem) {
  const int64_t sequences = problem.batch_invariant ? 1 : problem.batch;
  const int64_t heads = std::max<int64_t>(capped_product(sequences, problem.heads_k), 1);
  const int64_t blocks = num_blocks(problem.lengths_k.max, gradient_shape(problem).keys);
  return std::clamp<int64_t>(num_blocks(kWantedTasks, heads), 1, std::max<int64_t>(blocks, 1));
}

// Query rows of all sequences, each with room for the padding of its last row group.
int64_t all_rows(const BackwardProblem& problem) {
  const int64_t rows = problem.lengths_q.total;
  return rows == 0 ? 0 : rows + problem.batch * gradient_shape(problem).rows_per_group;
}

int64_t first_row(const BackwardProblem& problem, int64_t b) {
  const Lengths& lengths = problem.lengths_q;
  return (lengths.packed() ? lengths.cu_seqlens[b] : b * lengths.max) +
         b * gradient_shape(problem).rows_per_group;
}

// One worker's; gradient_tile.h says what is in them.
struct Buffers {
  float *q, *d_o;
  float *lse, *delta;
  KeyRange* row_keys;
  MaskRow* mask;
  DropoutRowPart* dropout;
  float *p, *ds;
  float *k, *kt, *vt;
  float *dk, *dv;
};

Buffers carve_buffers(const BackwardProblem& problem, WorkspaceAllocator& allocator) {
  const auto [group, queries, keys] = gradient_shape(problem);
  const int64_t columns = round_up(problem.head_dim, kOperandColumns);
  const int64_t columns_v = round_up(problem.head_dim_v, kOperandColumns);
  Buffers buffers = {};
  buffers.q = allocator.take<float>(queries, columns);
  buffers.d_o = allocator.take<float>(queries, columns_v);
  buffers.lse = allocator.take<float>(queries);
  buffers.delta = allocator.take<float>(queries);
  buffers.row_keys = allocator.take<KeyRange>(queries);
  if (problem.block_mask.on) buffers.mask = allocator.take<MaskRow>(queries);
  if (problem.dropout.on()) buffers.dropout = allocator.take<DropoutRowPart>(queries);
  buffers.p = allocator.take<float>(queries, keys + kScorePadding);
  buffers.ds = allocator.take<float>(queries, keys + kScorePadding);
  buffers.k = allocator.take<float>(keys, columns);
  buffers.kt = allocator.take<float>(keys, columns);
  buffers.vt = allocator.take<float>(keys, columns_v);
  buffers.dk = allocator.take<float>(keys, padded(problem.head_dim));
  buffers.dv = allocator.take<float>(keys, padded(problem.head_dim_v));
  return buffers;
}

struct BackwardWorkspace {
  // (heads_q, all rows): D = rowsum(dO * O) - dLSE, the paper's Algorithm 3, line 1, and what the
  // LSE's own gradient adds, since dLSE / dS = P.
  float* delta;
  float* dq;             // (parts, heads_q, all rows, dim)
  Operand d_o;           // behind the gate
  ThreadMemory threads;  // Buffers of each
};

BackwardWorkspace allocate(const BackwardProblem& problem, int num_threads,
                           WorkspaceAllocator& allocator) {
  const int64_t rows = all_rows(problem);
  return {.delta = allocator.take<float>(problem.heads_q, rows),
          .dq = allocator.take<float>(count_parts(problem), problem.heads_q, rows,
                                      padded(problem.head_dim)),
          .d_o = carve_gated(problem, allocator),
          .threads = take_thread_memory(allocator, num_threads, [&](WorkspaceAllocator& one) {
            carve_buffers(problem, one);
          })};
}

// What one call works on.
struct Run {
  const BackwardProblem& problem;
  const Kernels& kernels;
  const GradientKernels& gradients;
  BackwardWorkspace memory;
  PhiloxKey dropout_key;

  float* delta_at(int64_t b, int64_t head) const {
    return memory.delta + head * all_rows(problem) + first_row(problem, b);
  }
  float* dq_at(int64_t part, int64_t b, int64_t head) const {
    const int64_t row = (part * problem.heads_q + head) * all_rows(problem) + first_row(problem, b);
    return memory.dq + row * padded(problem.head_dim);
  }
};

void* row_of(const Operand& operand, int64_t b, int64_t row, int64_t head) {
  return visit_dtype(operand.dtype,
                     [&]<class T>(T) -> void* { return operand.at<T>(b, row, head); });
}

OperandRows rows_of(const Operand& operand, int64_t b, int64_t row, int64_t head, int64_t count,
                    int64_t dim) {
  return {row_of(operand, b, row, head), operand.row_stride, count, dim};
}

// Adds `num_parts` arrays of rows, part_stride apart, and writes them as rows of the operand.
void store_rows(const Run& run, const Operand& operand, int64_t b, int64_t head, int64_t row,
                GradientRows job) {
  job.out = row_of(operand, b, row, head);
  job.out_stride = operand.row_stride;
  run.kernels.store_gradient[kernel_index(operand.dtype)](job);
}

void compute_delta(const Run& run, int64_t b, int64_t head) {
  const BackwardProblem& problem = run.problem;
  const Rows rows = problem.lengths_q.rows_of(b);
  run.kernels.dot_rows[kernel_index(problem.o.dtype)](
      row_of(problem.o, b, rows.begin, head), problem.o.row_stride,
      row_of(problem.d_o, b, rows.begin, head), problem.d_o.row_stride, rows.used,
      problem.head_dim_v, run.delta_at(b, head));
  if (problem.d_lse.data == nullptr) return;
  for (int64_t q_row = 0; q_row < rows.used; ++q_row) {
    run.delta_at(b, head)[q_row] -= *problem.d_lse.at(b, head, rows.begin + q_row);
  }
}

// The sink is a logit without a value row: its dP is 0, so its dS is -P_sink D.
void compute_dsink(const Run& run, int64_t head) {
  const BackwardProblem& problem = run.problem;
  double sum = 0;
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Rows rows = problem.lengths_q.rows_of(b);
    const float* delta = run.delta_at(b, head);
    for (int64_t q_row = 0; q_row < rows.used; ++q_row) {
      const double lse = *problem.lse.at(b, head, rows.begin + q_row);
      if (lse == -kInfinity) continue;
      const double weight = std::min(exp_difference(double{problem.sink[head]}, lse), 1.0);
      sum -= weight * double{delta[q_row]};
    }
  }
  problem.dsink[head] = static_cast<float>(sum);
}

// A block of keys of one sequence and key head, and the tile that its queries stream through.
struct KeyBlock {
  int64_t b, kv_head, part;
  Rows q_rows, k_rows;
  int64_t begin, count;
  GradientTile tile;
};

GradientTile make_tile(const Problem& problem, const Buffers& buffers) {
  GradientTile tile;
  tile.head_dim = problem.head_dim;
  tile.head_dim_v = problem.head_dim_v;
  tile.dim = padded(problem.head_dim);
  tile.dim_v = padded(problem.head_dim_v);
  tile.scale = problem.scale;
  tile.softcap = problem.softcap;
  tile.q = buffers.q;
  tile.d_o = buffers.d_o;
  tile.lse = buffers.lse;
  tile.delta = buffers.delta;
  tile.row_keys = buffers.row_keys;
  tile.mask = buffers.mask;
  tile.k = buffers.k;
  tile.kt = buffers.kt;
  tile.vt = buffers.vt;
  tile.p = buffers.p;
  tile.ds = buffers.ds;
  tile.dk = buffers.dk;
  tile.dv = buffers.dv;
  return tile;
}

// The queries [begin, begin + count), padded to whole row groups.
void load_queries(const Run& run, const KeyBlock& keys, int64_t head, int64_t begin, int64_t count,
                  const Buffers& buffers, GradientTile* tile) {
  const BackwardProblem& problem = run.problem;
  const int64_t row = keys.q_rows.begin + begin;
  const int64_t padded_count = round_up(count, run.gradients.shape.rows_per_group);
  run.gradients.load_q[kernel_index(problem.dtype)](
      *tile, rows_of(problem.q, keys.b, row, head, count, problem.head_dim));
  run.gradients.load_d_o[kernel_index(problem.d_o.dtype)](
      *tile, rows_of(run.memory.d_o, keys.b, row, head, count, problem.head_dim_v));
  const float* delta = run.delta_at(keys.b, head) + begin;
  for (int64_t i = 0; i < padded_count; ++i) {
    const bool exists = i < count;
    const float lse = exists ? *problem.lse.at(keys.b, head, row + i) : -kInfinity;
    buffers.lse[i] = lse == -kInfinity ? kInfinity : lse;
    buffers.delta[i] = exists ? delta[i] : 0.0f;
    const KeyRange visible =
        problem.mask.keys_of(begin + std::min(i, count - 1), keys.q_rows.used, keys.k_rows.used);
    buffers.row_keys[i] = {std::clamp<int64_t>(visible.begin - keys.begin, 0, keys.count),
                           std::clamp<int64_t>(visible.end - keys.begin, 0, keys.count)};
  }
  if (problem.block_mask.on) {
    for (int64_t i = 0; i < padded_count; ++i) {
      buffers.mask[i] = mask_row(problem.block_mask, keys.b, head, begin + std::min(i, count - 1));
    }
  }
  if (problem.dropout.on()) {
    const DropoutHead of_head = problem.dropout.head(run.dropout_key, keys.b, head);
    for (int64_t i = 0; i < padded_count; ++i) {
      buffers.dropout[i] = dropout_row_part(problem.dropout, of_head, begin + i);
    }
  }
  tile->num_queries = padded_count;
  tile->dq = run.dq_at(keys.part, keys.b, head) + begin * tile->dim;
}

// Whether a block mask hides the key block from all queries [begin, begin + count).
bool hides_all(const BlockMask& mask, const KeyBlock& keys, int64_t head, int64_t begin,
               int64_t count) {
  if (!mask.on) return false;
  const int64_t first = keys.begin / kMaskBlock, last = (keys.begin + keys.count - 1) / kMaskBlock;
  for (int64_t q = begin / kMaskBlock; q <= (begin + count - 1) / kMaskBlock; ++q) {
    const int32_t* const row = mask.row_of(keys.b, head, q);
    if (std::any_of(row + first, row + last + 1, [](int32_t x) { return x != kHiddenBlock; })) {
      return false;
    }
  }
  return true;
}

void key_block_gradients(const Run& run, KeyBlock keys, const Buffers& buffers) {
  const BackwardProblem& problem = run.problem;
  GradientTile& tile = keys.tile;
  const int64_t row = keys.k_rows.begin + keys.begin;
  tile.first_key = keys.begin;
  tile.num_keys = keys.count;
  if (problem.dropout.on()) {
    tile.dropout = dropout_job(problem.dropout, run.dropout_key, keys.b, buffers.dropout);
  }
  run.gradients.load_keys[kernel_index(problem.dtype)](
      tile, rows_of(problem.k, keys.b, row, keys.kv_head, keys.count, problem.head_dim),
      rows_of(problem.v, keys.b, row, keys.kv_head, keys.count, problem.head_dim_v));
  std::fill_n(buffers.dk, run.gradients.shape.keys * tile.dim, 0.0f);
  std::fill_n(buffers.dv, run.gradients.shape.keys * tile.dim_v, 0.0f);
  const KeyRange queries = query_range(problem.mask, keys.begin, keys.begin + keys.count,
                                       keys.q_rows.used, keys.k_rows.used);
  for (int64_t g = 0; g < problem.group(); ++g) {
    const int64_t head = keys.kv_head * problem.group() + g;
    for (int64_t begin = queries.begin; begin < queries.end; begin += run.gradients.shape.queries) {
      const int64_t count = std::min(run.gradients.shape.queries, queries.end - begin);
      if (hides_all(problem.block_mask, keys, head, begin, count)) continue;
      load_queries(run, keys, head, begin, count, buffers, &tile);
      run.gradients.add(tile);
    }
  }
  store_rows(run, problem.dk, keys.b, keys.kv_head, row,
             {.parts = buffers.dk,
              .factor = problem.gradient_scale(keys.k_rows.used),
              .rows = keys.count,
              .dim = problem.head_dim,
              .add = problem.accumulate_dkv});
  store_rows(run, problem.dv, keys.b, keys.kv_head, row,
             {.parts = buffers.dv,
              .factor = tile.dropout.scale,
              .rows = keys.count,
              .dim = problem.head_dim_v,
              .add = problem.accumulate_dkv});
}

// Every count_parts-th key block of a key head, from block `part` on.
void key_part_task(const Run& run, int64_t b, int64_t kv_head, int64_t part,
                   const Buffers& buffers) {
  const BackwardProblem& problem = run.problem;
  KeyBlock keys = {.b = b,
                   .kv_head = kv_head,
                   .part = part,
                   .q_rows = problem.lengths_q.rows_of(b),
                   .k_rows = problem.lengths_k.rows_of(b),
                   .tile = make_tile(problem, buffers)};
  const int64_t block = run.gradients.shape.keys;
  if (part * block >= keys.k_rows.used) return;
  const int64_t rows = round_up(keys.q_rows.used, run.gradients.shape.rows_per_group);
  for (int64_t g = 0; g < problem.group(); ++g) {
    float* dq = run.dq_at(part, b, kv_head * problem.group() + g);
    std::fill_n(dq, rows * keys.tile.dim, 0.0f);
  }
  const int64_t step = count_parts(problem) * block;
  for (keys.begin = part * block; keys.begin < keys.k_rows.used; keys.begin += step) {
    keys.count = std::min(block, keys.k_rows.used - keys.begin);
    key_block_gradients(run, keys, buffers);
  }
}

// dQ, from the parts that had a key block.
void query_task(const Run& run, int64_t b, int64_t head) {
  const BackwardProblem& problem = run.problem;
  const Rows rows = problem.lengths_q.rows_of(b);
  const int64_t seqlen_k = problem.lengths_k.rows_of(b).used;
  const int64_t blocks = num_blocks(seqlen_k, run.gradients.shape.keys);
  const int64_t part_floats = problem.heads_q * all_rows(problem) * padded(problem.head_dim);
  store_rows(run, problem.dq, b, head, rows.begin,
             {.parts = run.dq_at(0, b, head),
              .part_stride = part_floats,
              .num_parts = std::min(count_parts(problem), blocks),
              .factor = problem.gradient_scale(seqlen_k),
              .rows = rows.used,
              .dim = problem.head_dim,
              .add = problem.accumulate_dq});
}

}  // namespace

Status plan_backward(const BackwardProblem& problem, Plan* plan) {
  if (problem.dtype == DType::float8_e4m3) return unsupported("no gradients of float8_e4m3");
  const int64_t parts = count_parts(problem);
  const int64_t tasks = capped_product(
      problem.batch, std::max(capped_product(problem.heads_k, parts), problem.heads_q));
  const int threads =
      static_cast<int>(std::clamp<int64_t>(tasks, 1, static_cast<int64_t>(problem.num_threads)));
  *plan = {.engine = "cpu",
           .kernel = concat("tiled backward ", isa_name(), dropout_suffix(problem.dropout)),
           .block_q = gradient_shape(problem).queries,
           .block_k = gradient_shape(problem).keys,
           .num_splits = parts,
           .num_tasks = tasks,
           .num_threads = threads,
           .workspace_bytes = bytes_of(
               [&](WorkspaceAllocator& allocator) { allocate(problem, threads, allocator); }),
           .why = concat("One pass over tiles, every product once. The key blocks of a head are "
                         "dealt out to ",
                         parts, parts == 1 ? " part" : " parts",
                         ", each with a float dQ of its own, added up in fixed order: repeatable, "
                         "whatever the number of threads.")};
  return {};
}

Status run_backward(const BackwardProblem& problem, const Plan& plan, void* workspace, void*) {
  if (problem.lengths_q.total == 0) return zero_gradients(problem);
  WorkspaceAllocator allocator(workspace);
  const Run run = {problem, kernels(), gradient_kernels(problem),
                   allocate(problem, plan.num_threads, allocator), call_key(problem.dropout)};
  const auto buffers_of = [&](int worker) {
    WorkspaceAllocator mine = run.memory.threads[worker];
    return carve_buffers(problem, mine);
  };
  apply_gate(problem, run.memory.d_o, plan.num_threads);
  const int64_t heads_q = problem.heads_q;
  parallel_for(problem.batch * heads_q, plan.num_threads,
               [&](int64_t task, int) { compute_delta(run, task / heads_q, task % heads_q); });
  if (problem.dsink != nullptr) {
    parallel_for(heads_q, plan.num_threads, [&](int64_t head, int) { compute_dsink(run, head); });
  }
  const int64_t pairs = problem.batch * problem.heads_k;
  parallel_for(pairs * count_parts(problem), plan.num_threads, [&](int64_t task, int worker) {
    const int64_t pair = task % pairs;
    key_part_task(run, pair / problem.heads_k, pair % problem.heads_k, task / pairs,
                  buffers_of(worker));
  });
  parallel_for(problem.batch * heads_q, plan.num_threads,
               [&](int64_t task, int) { query_task(run, task / heads_q, task % heads_q); });
  zero_unused_gradients(problem);
  return {};
}

}  // namespace fa3::cpu
