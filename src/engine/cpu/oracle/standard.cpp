// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/oracle/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/error.h"
#include "engine/cpu/gate/gate.h"
#include "engine/cpu/machine/parallel.h"
#include "engine/cpu/oracle/dropout_factors.h"
#include "engine/cpu/rows.h"

namespace fa3::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// One (batch, head)'s view of the problem, with its operands in float. K and V are also kept
// transposed, so that every product below is a sum of scaled contiguous rows.
struct HeadTask {
  const Problem& problem;
  int64_t b, head;
  Rows q_rows, k_rows;

  int64_t queries() const { return q_rows.used; }
  int64_t keys() const { return k_rows.used; }
  int64_t kv_head() const { return head / problem.group(); }
};

HeadTask head_task(const Problem& problem, int64_t b, int64_t head) {
  return {problem, b, head, problem.lengths_q.rows_of(b), problem.lengths_k.rows_of(b)};
}

// sum_i weights[i] * rows[i] over `count` contiguous rows of length n, added to out.
void add_weighted_rows(const float* weights, const float* rows, int64_t count, int64_t n,
                       float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const float weight = weights[i];
    const float* row = rows + i * n;
    for (int64_t c = 0; c < n; ++c) out[c] += weight * row[c];
  }
}

template <class T>
void load_keys(const HeadTask& task, const Operand& operand, int64_t dim, float* rows) {
  for (int64_t key = 0; key < task.keys(); ++key) {
    const int64_t row = task.k_rows.begin + key;
    load_row(task.problem.key_row<T>(operand, task.b, row, task.kv_head()), dim, rows + key * dim);
  }
}

void transpose(const float* rows, int64_t count, int64_t dim, float* columns) {
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t c = 0; c < dim; ++c) columns[c * count + r] = rows[r * dim + c];
  }
}

struct Buffers {
  float* k;         // (keys, dim), then transposed into kt
  float* kt;        // (dim, keys)
  float* v;         // (keys, dim_v)
  float* vt;        // (dim_v, keys)
  float* q;         // (dim)
  float* d_o;       // (dim_v)
  float* row;       // (keys)
  float* kept;      // (keys): dropout's factors of P
  float* gradient;  // (dim) or (dim_v)
  float* dk;        // (keys, dim)
  float* dv;        // (keys, dim_v)
};

Buffers carve_buffers(const Problem& problem, WorkspaceAllocator& allocator) {
  const int64_t keys = problem.lengths_k.max;
  const int64_t dim = problem.head_dim;
  const int64_t dim_v = problem.head_dim_v;
  Buffers buffers;
  buffers.k = allocator.take<float>(keys, dim);
  buffers.kt = allocator.take<float>(keys, dim);
  buffers.v = allocator.take<float>(keys, dim_v);
  buffers.vt = allocator.take<float>(keys, dim_v);
  buffers.q = allocator.take<float>(dim);
  buffers.d_o = allocator.take<float>(dim_v);
  buffers.row = allocator.take<float>(keys);
  buffers.kept = allocator.take<float>(keys);
  buffers.gradient = allocator.take<float>(std::max(dim, dim_v));
  buffers.dk = allocator.take<float>(keys, dim);
  buffers.dv = allocator.take<float>(keys, dim_v);
  return buffers;
}

// Elements of one (batch, heads, seqlen_q, seqlen_k) matrix.
int64_t matrix_elements(const Problem& problem) {
  return problem.batch * problem.heads_q * problem.lengths_q.max * problem.lengths_k.max;
}

// The stored score matrices, each in the input dtype, and every thread's buffers.
template <class T>
struct Memory {
  T* p = nullptr;   // S, overwritten by P
  T* ds = nullptr;  // dP, overwritten by dS; backward only
  Operand d_o;      // behind the gate; backward only
  ThreadMemory threads;
};

template <class T, class P>
Memory<T> carve_memory(const P& problem, int num_threads, WorkspaceAllocator& allocator) {
  Memory<T> memory;
  memory.p = allocator.take<T>(matrix_elements(problem));
  if constexpr (std::is_same_v<P, BackwardProblem>) {
    memory.ds = allocator.take<T>(matrix_elements(problem));
    memory.d_o = carve_gated(problem, allocator);
  }
  memory.threads = take_thread_memory(
      allocator, num_threads, [&](WorkspaceAllocator& one) { carve_buffers(problem, one); });
  return memory;
}

template <class T>
T* head_matrix(const HeadTask& task, T* matrices) {
  const Problem& problem = task.problem;
  return matrices +
         (task.b * problem.heads_q + task.head) * problem.lengths_q.max * problem.lengths_k.max;
}

// Dropout's factors of a query's weights.
void load_factors(const HeadTask& task, int64_t q_row, const Buffers& buffers) {
  dropout_factors(task.problem, task.b, task.head, q_row, {0, task.keys()}, buffers.kept);
}

bool sees_a_key(const HeadTask& task, int64_t q_row) {
  const Problem& problem = task.problem;
  const KeyRange visible = problem.mask.keys_of(q_row, task.queries(), task.keys());
  int64_t key = visible.begin;
  while (key < visible.end && !problem.shows(task.b, task.head, q_row, key)) ++key;
  return key < visible.end;
}

float capped(float score, float softcap) {
  return softcap > 0 ? softcap * std::tanh(score / softcap) : score;
}

void raise_max_logit_of_row(const HeadTask& task, int64_t q_row, const float* scores) {
  const Problem& problem = task.problem;
  const KeyRange visible = problem.mask.keys_of(q_row, task.queries(), task.keys());
  for (int64_t key = visible.begin; key < visible.end; ++key) {
    if (!problem.shows(task.b, task.head, q_row, key)) continue;
    raise_max_logit(problem.max_logit.at(task.b, task.head), scores[key]);
  }
}

// S = softcap(scale * Q K^T), every score, hidden ones too.
template <class T>
void store_scores(const HeadTask& task, const Buffers& buffers, T* s) {
  const Problem& problem = task.problem;
  for (int64_t q_row = 0; q_row < task.queries(); ++q_row) {
    load_row(problem.q.at<T>(task.b, task.q_rows.begin + q_row, task.head), problem.head_dim,
             buffers.q);
    std::fill_n(buffers.row, task.keys(), 0.0f);
    add_weighted_rows(buffers.q, buffers.kt, problem.head_dim, task.keys(), buffers.row);
    for (int64_t key = 0; key < task.keys(); ++key) buffers.row[key] *= problem.scale;
    if (problem.max_logit.on) raise_max_logit_of_row(task, q_row, buffers.row);
    for (int64_t key = 0; key < task.keys(); ++key) {
      buffers.row[key] = capped(buffers.row[key], problem.softcap);
    }
    store_row(buffers.row, task.keys(), s + q_row * task.keys());
  }
}

// P = softmax(mask(S)) in place; returns nothing but writes the LSE where it is wanted.
template <class T>
void softmax_rows(const HeadTask& task, bool write_lse, float* row, T* p) {
  const Problem& problem = task.problem;
  const float sink = problem.sink != nullptr ? problem.sink[task.head] : -kInfinity;
  for (int64_t q_row = 0; q_row < task.queries(); ++q_row) {
    T* stored = p + q_row * task.keys();
    load_row(stored, task.keys(), row);
    const KeyRange visible = problem.mask.keys_of(q_row, task.queries(), task.keys());
    float max = sink;
    for (int64_t key = visible.begin; key < visible.end; ++key) {
      if (!problem.shows(task.b, task.head, q_row, key)) row[key] = -kInfinity;
      max = std::max(max, row[key]);
    }
    const float shift = max == -kInfinity ? 0.0f : max;
    float sum = exp_difference(sink, shift);
    for (int64_t key = visible.begin; key < visible.end; ++key) {
      row[key] = std::exp(row[key] - shift);
      sum += row[key];
    }
    const float inverse = sum == 0 ? 0.0f : 1 / sum;
    for (int64_t key = 0; key < task.keys(); ++key) {
      row[key] = visible.contains(key) ? row[key] * inverse : 0.0f;
    }
    store_row(row, task.keys(), stored);
    if (write_lse && problem.lse.data != nullptr) {
      *problem.lse.at(task.b, task.head, task.q_rows.begin + q_row) =
          sum == 0 ? -kInfinity : shift + std::log(sum);
    }
  }
}

template <class T, class Out>
void forward_head(const HeadTask& task, T* matrices, const Buffers& buffers) {
  const Problem& problem = task.problem;
  T* p = head_matrix(task, matrices);
  load_keys<T>(task, problem.k, problem.head_dim, buffers.k);
  load_keys<T>(task, problem.v, problem.head_dim_v, buffers.v);
  transpose(buffers.k, task.keys(), problem.head_dim, buffers.kt);
  store_scores(task, buffers, p);
  softmax_rows(task, true, buffers.row, p);
  for (int64_t q_row = 0; q_row < task.queries(); ++q_row) {
    load_row(p + q_row * task.keys(), task.keys(), buffers.row);
    load_factors(task, q_row, buffers);
    for (int64_t key = 0; key < task.keys(); ++key) buffers.row[key] *= buffers.kept[key];
    std::fill_n(buffers.gradient, problem.head_dim_v, 0.0f);
    // Whole rows, as a matrix product does: hidden keys count with weight 0.
    add_weighted_rows(buffers.row, buffers.v, task.keys(), problem.head_dim_v, buffers.gradient);
    const int64_t row = task.q_rows.begin + q_row;
    apply_gate(problem, task.b, row, task.head, buffers.gradient);
    store_row(buffers.gradient, problem.head_dim_v, problem.o.at<Out>(task.b, row, task.head));
  }
}

// dS = P (dP - rowsum(P dP) + dLSE) softcap'(S), with dP = F dO V^T, into `ds`; F: dropout's
// factors.
template <class T, class Out>
void store_score_gradients(const HeadTask& task, const BackwardProblem& problem, const Operand& d_o,
                           const Buffers& buffers, const T* p, T* ds, float* dsink) {
  const int64_t keys = task.keys();
  for (int64_t q_row = 0; q_row < task.queries(); ++q_row) {
    const int64_t q_at = task.q_rows.begin + q_row;
    load_row(d_o.at<Out>(task.b, q_at, task.head), problem.head_dim_v, buffers.d_o);
    std::fill_n(buffers.row, keys, 0.0f);
    add_weighted_rows(buffers.d_o, buffers.vt, problem.head_dim_v, keys, buffers.row);
    load_factors(task, q_row, buffers);
    float d = 0;
    float p_sum = 0;
    for (int64_t key = 0; key < keys; ++key) {
      buffers.row[key] *= buffers.kept[key];
      d += to_float(p[q_row * keys + key]) * buffers.row[key];
      p_sum += to_float(p[q_row * keys + key]);
    }
    // What the keys leave of the probability is the sink's.
    const bool sees_nothing = !sees_a_key(task, q_row);
    const bool has_sink = problem.sink != nullptr && problem.sink[task.head] != -kInfinity;
    if (sees_nothing) d = 0;
    if (problem.d_lse.data != nullptr && (has_sink || !sees_nothing)) {
      d -= *problem.d_lse.at(task.b, task.head, q_at);
    }
    if (has_sink) *dsink -= (1 - p_sum) * d;
    const T* q = problem.q.at<T>(task.b, q_at, task.head);
    for (int64_t key = 0; key < keys; ++key) {
      float slope = 1;
      if (problem.softcap > 0) {
        float score = 0;
        for (int64_t c = 0; c < problem.head_dim; ++c) {
          score += to_float(q[c]) * buffers.k[key * problem.head_dim + c];
        }
        const float t = std::tanh(problem.scale * score / problem.softcap);
        slope = 1 - t * t;
      }
      buffers.row[key] = to_float(p[q_row * keys + key]) * (buffers.row[key] - d) * slope;
    }
    store_row(buffers.row, keys, ds + q_row * keys);
  }
}

// dQ = scale dS K,  dK += scale dS^T Q,  dV += (F P)^T dO.
template <class T, class Out>
void multiply_out(const HeadTask& task, const BackwardProblem& problem, const Operand& d_o,
                  const Buffers& buffers, const T* p, const T* ds) {
  const int64_t keys = task.keys();
  for (int64_t q_row = 0; q_row < task.queries(); ++q_row) {
    const int64_t q_at = task.q_rows.begin + q_row;
    load_row(problem.q.at<T>(task.b, q_at, task.head), problem.head_dim, buffers.q);
    load_row(d_o.at<Out>(task.b, q_at, task.head), problem.head_dim_v, buffers.d_o);
    load_factors(task, q_row, buffers);
    std::fill_n(buffers.gradient, problem.head_dim, 0.0f);
    for (int64_t key = 0; key < keys; ++key) {
      const float weight = problem.gradient_scale(keys) * to_float(ds[q_row * keys + key]);
      const float probability = to_float(p[q_row * keys + key]) * buffers.kept[key];
      add_weighted_rows(&weight, buffers.k + key * problem.head_dim, 1, problem.head_dim,
                        buffers.gradient);
      add_weighted_rows(&weight, buffers.q, 1, problem.head_dim,
                        buffers.dk + key * problem.head_dim);
      add_weighted_rows(&probability, buffers.d_o, 1, problem.head_dim_v,
                        buffers.dv + key * problem.head_dim_v);
    }
    store_row(buffers.gradient, problem.head_dim, problem.dq.at<T>(task.b, q_at, task.head));
  }
}

template <class T, class Out>
void backward_kv_head(const BackwardProblem& problem, int64_t kv_head, const Memory<T>& memory,
                      const Buffers& buffers) {
  const int64_t first_head = kv_head * problem.group();
  for (int64_t head = first_head; head < first_head + problem.group(); ++head) {
    if (problem.dsink != nullptr) problem.dsink[head] = 0;
  }
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Rows k_rows = problem.lengths_k.rows_of(b);
    std::fill_n(buffers.dk, k_rows.used * problem.head_dim, 0.0f);
    std::fill_n(buffers.dv, k_rows.used * problem.head_dim_v, 0.0f);
    for (int64_t head = first_head; head < first_head + problem.group(); ++head) {
      const HeadTask task = head_task(problem, b, head);
      T* p = head_matrix(task, memory.p);
      T* ds = head_matrix(task, memory.ds);
      load_keys<T>(task, problem.k, problem.head_dim, buffers.k);
      load_keys<T>(task, problem.v, problem.head_dim_v, buffers.v);
      transpose(buffers.k, task.keys(), problem.head_dim, buffers.kt);
      transpose(buffers.v, task.keys(), problem.head_dim_v, buffers.vt);
      store_scores(task, buffers, p);
      softmax_rows(task, false, buffers.row, p);
      float dsink = 0;
      store_score_gradients<T, Out>(task, problem, memory.d_o, buffers, p, ds, &dsink);
      multiply_out<T, Out>(task, problem, memory.d_o, buffers, p, ds);
      if (problem.dsink != nullptr) problem.dsink[head] += dsink;
    }
    for (int64_t key = 0; key < k_rows.used; ++key) {
      store_row(buffers.dk + key * problem.head_dim, problem.head_dim,
                problem.dk.at<T>(b, k_rows.begin + key, kv_head));
      store_row(buffers.dv + key * problem.head_dim_v, problem.head_dim_v,
                problem.dv.at<T>(b, k_rows.begin + key, kv_head));
    }
  }
}

template <class P>
Status standard_plan(const P& problem, int64_t num_tasks, Plan* plan) {
  constexpr bool backward = std::is_same_v<P, BackwardProblem>;
  if (problem.has_float8()) {
    return unsupported(name_of(problem.kv_dtype),
                       " is not among its element types (float32, float16, bfloat16)");
  }
  constexpr int64_t kMaxElements = int64_t{1} << 58;  // so that bytes stay inside int64
  if (matrix_elements(problem) > kMaxElements) {
    return unsupported("the stored score matrix would have ", matrix_elements(problem),
                       " elements; use the tiled engine");
  }
  const int threads = static_cast<int>(
      std::clamp<int64_t>(num_tasks, 1, static_cast<int64_t>(problem.num_threads)));
  WorkspaceAllocator count;
  visit_dtype(problem.dtype, [&]<class T>(T) { carve_memory<T>(problem, threads, count); });
  *plan = {.engine = "standard",
           .kernel = "S and P stored",
           .num_tasks = num_tasks,
           .num_threads = threads,
           .workspace_bytes = count.bytes(),
           .why = concat("The baseline: ", backward ? "two score matrices" : "a score matrix",
                         " of batch * heads * seqlen_q * seqlen_k elements in ",
                         name_of(problem.dtype), ".")};
  return {};
}

}  // namespace

Status plan_standard_forward(const Problem& problem, Plan* plan) {
  const bool no_rows = problem.lengths_q.total == 0;
  return standard_plan(problem, no_rows ? 0 : problem.batch * problem.heads_q, plan);
}

Status run_standard_forward(const Problem& problem, const Plan& plan, void* workspace, void*) {
  clear_max_logit(problem);
  visit_dtype(problem.dtype, [&]<class T>(T) {
    WorkspaceAllocator allocator(workspace);
    const Memory<T> memory = carve_memory<T>(problem, plan.num_threads, allocator);
    visit_dtype(problem.o.dtype, [&]<class Out>(Out) {
      parallel_for(plan.num_tasks, plan.num_threads, [&](int64_t task, int worker) {
        WorkspaceAllocator mine = memory.threads[worker];
        forward_head<T, Out>(head_task(problem, task / problem.heads_q, task % problem.heads_q),
                             memory.p, carve_buffers(problem, mine));
      });
    });
  });
  fill_unused_results(problem);
  return {};
}

Status plan_standard_backward(const BackwardProblem& problem, Plan* plan) {
  if (problem.has_wide_gradients()) {
    return unsupported("gradients of float32 from inputs of ", name_of(problem.dtype));
  }
  if (problem.accumulates()) return unsupported("gradients that are added to others");
  return standard_plan(problem, problem.heads_k, plan);
}

Status run_standard_backward(const BackwardProblem& problem, const Plan& plan, void* workspace,
                             void*) {
  if (problem.lengths_q.total == 0) return zero_gradients(problem);
  visit_dtype(problem.dtype, [&]<class T>(T) {
    WorkspaceAllocator allocator(workspace);
    const Memory<T> memory = carve_memory<T>(problem, plan.num_threads, allocator);
    apply_gate(problem, memory.d_o, plan.num_threads);
    visit_dtype(problem.d_o.dtype, [&]<class Out>(Out) {
      parallel_for(plan.num_tasks, plan.num_threads, [&](int64_t kv_head, int worker) {
        WorkspaceAllocator mine = memory.threads[worker];
        backward_kv_head<T, Out>(problem, kv_head, memory, carve_buffers(problem, mine));
      });
    });
  });
  zero_unused_gradients(problem);
  return {};
}

}  // namespace fa3::cpu
