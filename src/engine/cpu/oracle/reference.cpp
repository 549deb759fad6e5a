// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/oracle/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "engine/cpu/gate/gate.h"
#include "engine/cpu/machine/parallel.h"
#include "engine/cpu/oracle/dropout_factors.h"
#include "engine/cpu/rows.h"

namespace fa3::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double dot(const double* a, const double* b, int64_t dim) {
  double sum = 0;
  for (int64_t c = 0; c < dim; ++c) sum += a[c] * b[c];
  return sum;
}

// The numbers that those of a float8 row stand for.
void restore_row(const Quantization& quantization, int64_t b, int64_t row, int64_t head,
                 int64_t dim, double* out) {
  const double scale = quantization.scale_at(b, head, row);
  const float* mean = quantization.mean_at(b, head);
  for (int64_t c = 0; c < dim; ++c) {
    out[c] = out[c] * scale + (mean == nullptr ? 0.0 : double{mean[c]});
  }
}

// A row of a sequence, as the numbers that it stands for.
void read_row(const Operand& x, const Quantization& quantization, const KeyPlaces& places,
              int64_t b, Rows rows, int64_t row, int64_t head, int64_t dim, double* out) {
  const auto load = [&]<class T>(T) {
    load_row(row_at<T>(x, places, b, rows.begin + row, head), dim, out);
  };
  if (!is_float8(x.dtype)) return visit_dtype(x.dtype, load);
  x.dtype == DType::float8_e4m3 ? load(Float8E4M3{}) : load(Float8E5M2{});
  restore_row(quantization, b, row, head, dim, out);
}

void read_value(const Problem& problem, int64_t b, Rows rows, int64_t row, int64_t head,
                double* out) {
  const Transposed& transposed = problem.v_transposed;
  if (!transposed.on) {
    return read_row(problem.v, problem.v_quantization, problem.key_places, b, rows, row, head,
                    problem.head_dim_v, out);
  }
  for (int64_t c = 0; c < problem.head_dim_v; ++c) {
    out[c] = to_float(*transposed.at<Float8E4M3>(problem.v, b, row, head, c));
  }
  restore_row(problem.v_quantization, b, row, head, problem.head_dim_v, out);
}

// One query's softmax: P over its visible keys and what the denominator was.
struct RowSoftmax {
  KeyRange keys;
  double lse = -kInfinity;
  double* q = nullptr;          // (head_dim)
  double* k = nullptr;          // (head_dim), of one key
  double* p = nullptr;          // (seqlen_k), valid within keys
  double* cap_slope = nullptr;  // d softcap(s) / d s, or null
  double largest = -kInfinity;  // scale * q.k of a seen key, or NaN
};

// P = softmax(mask(softcap(scale * q K^T))), with the sink as one more logit.
void softmax_row(const Problem& problem, int64_t b, int64_t head, int64_t q_row, Rows q_rows,
                 Rows k_rows, RowSoftmax* row) {
  row->keys = problem.mask.keys_of(q_row, q_rows.used, k_rows.used);
  read_row(problem.q, problem.q_quantization, {}, b, q_rows, q_row, head, problem.head_dim, row->q);
  const double sink = problem.sink != nullptr ? double{problem.sink[head]} : -kInfinity;
  double max = sink;
  for (int64_t key = row->keys.begin; key < row->keys.end; ++key) {
    if (!problem.shows(b, head, q_row, key)) {
      row->p[key] = -kInfinity;
      continue;
    }
    read_row(problem.k, problem.k_quantization, problem.key_places, b, k_rows, key,
             head / problem.group(), problem.head_dim, row->k);
    double score = double{problem.scale} * dot(row->q, row->k, problem.head_dim);
    if (score > row->largest || std::isnan(score)) row->largest = score;
    if (problem.softcap > 0) {
      const double t = std::tanh(score / double{problem.softcap});
      score = double{problem.softcap} * t;
      if (row->cap_slope != nullptr) row->cap_slope[key] = 1 - t * t;
    }
    row->p[key] = score;
    max = std::max(max, score);
  }
  // All scores -inf: like a row that sees nothing. NaN scores are no maximum, and stay NaN below.
  const double shift = max == -kInfinity ? 0 : max;
  double sum = exp_difference(sink, shift);
  for (int64_t key = row->keys.begin; key < row->keys.end; ++key) {
    row->p[key] = std::exp(row->p[key] - shift);
    sum += row->p[key];
  }
  row->lse = sum == 0 ? -kInfinity : shift + std::log(sum);
  const double inverse = sum == 0 ? 0 : 1 / sum;
  for (int64_t key = row->keys.begin; key < row->keys.end; ++key) row->p[key] *= inverse;
}

struct ForwardScratch {
  double* q;
  double* k;
  double* v;
  double* p;
  double* kept;  // dropout's factors of p
  double* o;
};

ForwardScratch carve_forward(const Problem& problem, WorkspaceAllocator& allocator) {
  return {
      allocator.take<double>(problem.head_dim),      allocator.take<double>(problem.head_dim),
      allocator.take<double>(problem.head_dim_v),    allocator.take<double>(problem.lengths_k.max),
      allocator.take<double>(problem.lengths_k.max), allocator.take<double>(problem.head_dim_v)};
}

template <class Out>
void forward_sequence(const Problem& problem, int64_t b, int64_t head, ForwardScratch scratch) {
  const Rows q_rows = problem.lengths_q.rows_of(b);
  const Rows k_rows = problem.lengths_k.rows_of(b);
  for (int64_t q_row = 0; q_row < q_rows.used; ++q_row) {
    RowSoftmax row{.q = scratch.q, .k = scratch.k, .p = scratch.p};
    softmax_row(problem, b, head, q_row, q_rows, k_rows, &row);
    dropout_factors(problem, b, head, q_row, row.keys, scratch.kept);
    std::fill_n(scratch.o, problem.head_dim_v, 0.0);
    for (int64_t key = row.keys.begin; key < row.keys.end; ++key) {
      if (!problem.shows(b, head, q_row, key)) continue;
      read_value(problem, b, k_rows, key, head / problem.group(), scratch.v);
      const double weight = row.p[key] * scratch.kept[key];
      for (int64_t c = 0; c < problem.head_dim_v; ++c) scratch.o[c] += weight * scratch.v[c];
    }
    const int64_t o_row = q_rows.begin + q_row;
    apply_gate(problem, b, o_row, head, scratch.o);
    store_row(scratch.o, problem.head_dim_v, problem.o.at<Out>(b, o_row, head));
    if (problem.max_logit.on) {
      raise_max_logit(problem.max_logit.at(b, head), static_cast<float>(row.largest));
    }
    if (problem.lse.data != nullptr) {
      *problem.lse.at(b, head, q_rows.begin + q_row) = static_cast<float>(row.lse);
    }
  }
}

struct BackwardScratch {
  double* q;
  double* k;
  double* p;
  double* kept;  // dropout's factors of p
  double* dp;
  double* cap_slope;
  double* d_o;  // behind the gate
  double* o;    // of attention, before the gate
  double* dq;
  double* dk;  // (seqlen_k, head_dim)
  double* dv;  // (seqlen_k, head_dim_v)
};

BackwardScratch carve_backward(const BackwardProblem& problem, WorkspaceAllocator& allocator) {
  const int64_t keys = problem.lengths_k.max;
  return {allocator.take<double>(problem.head_dim),
          allocator.take<double>(problem.head_dim),
          allocator.take<double>(keys),
          allocator.take<double>(keys),
          allocator.take<double>(keys),
          allocator.take<double>(keys),
          allocator.take<double>(problem.head_dim_v),
          allocator.take<double>(problem.head_dim_v),
          allocator.take<double>(problem.head_dim),
          allocator.take<double>(keys, problem.head_dim),
          allocator.take<double>(keys, problem.head_dim_v)};
}

// With P recomputed and D = sum_j P_j dP_j - dLSE (= dO . O - dLSE, since dLSE / dS_j = P_j):
//   dV_j += F_j P_j dO  dP_j = F_j dO . V_j  dS_j = P_j (dP_j - D) softcap'(S_j)
//   dQ = scale * sum_j dS_j K_j              dK_j += scale * dS_j Q
// F are dropout's factors. The sink has no value row, so its dP is 0: d sink = -P_sink D, which is
// returned.
template <class T, class Out>
double backward_row(const BackwardProblem& problem, int64_t b, int64_t head, int64_t q_row,
                    Rows q_rows, Rows k_rows, const BackwardScratch& scratch) {
  const int64_t kv_head = head / problem.group();
  const int64_t q_at = q_rows.begin + q_row;
  RowSoftmax row{.q = scratch.q, .k = scratch.k, .p = scratch.p, .cap_slope = scratch.cap_slope};
  softmax_row(problem, b, head, q_row, q_rows, k_rows, &row);
  const T* q = problem.q.at<T>(b, q_at, head);
  const Out* given = problem.d_o.at<Out>(b, q_at, head);
  double* const d_o = scratch.d_o;
  for (int64_t c = 0; c < problem.head_dim_v; ++c) {
    d_o[c] = gate_factor(problem.gate, b, q_at, head, c) * double{to_float(given[c])};
  }
  std::fill_n(scratch.o, problem.head_dim_v, 0.0);

  dropout_factors(problem, b, head, q_row, row.keys, scratch.kept);
  double d = 0;
  for (int64_t key = row.keys.begin; key < row.keys.end; ++key) {
    if (!problem.shows(b, head, q_row, key)) continue;
    const double weight = row.p[key] * scratch.kept[key];
    const T* v = problem.v.at<T>(b, k_rows.begin + key, kv_head);
    double dp = 0;
    for (int64_t c = 0; c < problem.head_dim_v; ++c) {
      dp += d_o[c] * double{to_float(v[c])};
      scratch.dv[key * problem.head_dim_v + c] += weight * d_o[c];
      scratch.o[c] += weight * double{to_float(v[c])};
    }
    scratch.dp[key] = scratch.kept[key] * dp;
    d += row.p[key] * scratch.dp[key];
  }
  if (problem.d_lse.data != nullptr && row.lse != -kInfinity) {
    d -= double{*problem.d_lse.at(b, head, q_at)};
  }
  GateGradient d_gate(problem, b, q_at, head);
  for (int64_t c = 0; c < problem.head_dim_v; ++c) {
    const double factor = gate_factor(problem.gate, b, q_at, head, c);
    d_gate.add(c, scratch.o[c] != 0 ? d_o[c] * scratch.o[c] * (1 - factor) : 0);
  }
  std::fill_n(scratch.dq, problem.head_dim, 0.0);
  for (int64_t key = row.keys.begin; key < row.keys.end; ++key) {
    if (!problem.shows(b, head, q_row, key)) continue;
    const T* k = problem.k.at<T>(b, k_rows.begin + key, kv_head);
    const double slope = problem.softcap > 0 ? scratch.cap_slope[key] : 1;
    const double ds = double{problem.scale} * row.p[key] * (scratch.dp[key] - d) * slope;
    for (int64_t c = 0; c < problem.head_dim; ++c) {
      scratch.dq[c] += ds * double{to_float(k[c])};
      scratch.dk[key * problem.head_dim + c] += ds * double{to_float(q[c])};
    }
  }
  store_row(scratch.dq, problem.head_dim, problem.dq.at<T>(b, q_at, head));
  return problem.sink == nullptr || row.lse == -kInfinity
             ? 0
             : -exp_difference(double{problem.sink[head]}, row.lse) * d;
}

// Every gradient that the key/value head owns: its dK, dV, and the dQ and dsink of its group.
template <class T, class Out>
void backward_kv_head(const BackwardProblem& problem, int64_t kv_head,
                      const BackwardScratch& scratch) {
  const int64_t first_head = kv_head * problem.group();
  for (int64_t head = first_head; head < first_head + problem.group(); ++head) {
    if (problem.dsink != nullptr) problem.dsink[head] = 0;
  }
  for (int64_t b = 0; b < problem.batch; ++b) {
    const Rows q_rows = problem.lengths_q.rows_of(b);
    const Rows k_rows = problem.lengths_k.rows_of(b);
    std::fill_n(scratch.dk, k_rows.used * problem.head_dim, 0.0);
    std::fill_n(scratch.dv, k_rows.used * problem.head_dim_v, 0.0);
    for (int64_t head = first_head; head < first_head + problem.group(); ++head) {
      double dsink = 0;
      for (int64_t q_row = 0; q_row < q_rows.used; ++q_row) {
        dsink += backward_row<T, Out>(problem, b, head, q_row, q_rows, k_rows, scratch);
      }
      if (problem.dsink != nullptr) problem.dsink[head] += static_cast<float>(dsink);
    }
    for (int64_t key = 0; key < k_rows.used; ++key) {
      const int64_t k_at = k_rows.begin + key;
      store_row(scratch.dk + key * problem.head_dim, problem.head_dim,
                problem.dk.at<T>(b, k_at, kv_head));
      store_row(scratch.dv + key * problem.head_dim_v, problem.head_dim_v,
                problem.dv.at<T>(b, k_at, kv_head));
    }
  }
}

ThreadMemory carve_threads(const Problem& problem, int num_threads, WorkspaceAllocator& allocator) {
  return take_thread_memory(allocator, num_threads,
                            [&](WorkspaceAllocator& one) { carve_forward(problem, one); });
}

ThreadMemory carve_threads(const BackwardProblem& problem, int num_threads,
                           WorkspaceAllocator& allocator) {
  return take_thread_memory(allocator, num_threads,
                            [&](WorkspaceAllocator& one) { carve_backward(problem, one); });
}

template <class P>
Plan reference_plan(const P& problem, int64_t num_tasks) {
  const int threads = static_cast<int>(
      std::clamp<int64_t>(num_tasks, 1, static_cast<int64_t>(problem.num_threads)));
  return {.engine = "reference",
          .kernel = "textbook float64",
          .num_tasks = num_tasks,
          .num_threads = threads,
          .workspace_bytes = bytes_of(
              [&](WorkspaceAllocator& allocator) { carve_threads(problem, threads, allocator); }),
          .why = "The oracle: double precision, one query row at a time."};
}

}  // namespace

Status plan_reference_forward(const Problem& problem, Plan* plan) {
  const bool no_rows = problem.lengths_q.total == 0;
  *plan = reference_plan(problem, no_rows ? 0 : problem.batch * problem.heads_q);
  return {};
}

Status run_reference_forward(const Problem& problem, const Plan& plan, void* workspace, void*) {
  clear_max_logit(problem);
  WorkspaceAllocator allocator(workspace);
  const ThreadMemory memory = carve_threads(problem, plan.num_threads, allocator);
  visit_dtype(problem.o.dtype, [&]<class Out>(Out) {
    parallel_for(plan.num_tasks, plan.num_threads, [&](int64_t task, int worker) {
      WorkspaceAllocator mine = memory[worker];
      forward_sequence<Out>(problem, task / problem.heads_q, task % problem.heads_q,
                            carve_forward(problem, mine));
    });
  });
  fill_unused_results(problem);
  return {};
}

Status plan_reference_backward(const BackwardProblem& problem, Plan* plan) {
  if (problem.dtype == DType::float8_e4m3) return unsupported("no gradients of float8_e4m3");
  if (problem.has_wide_gradients()) {
    return unsupported("gradients of float32 from inputs of ", name_of(problem.dtype));
  }
  if (problem.accumulates()) return unsupported("gradients that are added to others");
  *plan = reference_plan(problem, problem.heads_k);
  return {};
}

Status run_reference_backward(const BackwardProblem& problem, const Plan& plan, void* workspace,
                              void*) {
  if (problem.lengths_q.total == 0) return zero_gradients(problem);
  WorkspaceAllocator allocator(workspace);
  const ThreadMemory memory = carve_threads(problem, plan.num_threads, allocator);
  visit_dtype(problem.dtype, [&]<class T>(T) {
    visit_dtype(problem.d_o.dtype, [&]<class Out>(Out) {
      parallel_for(plan.num_tasks, plan.num_threads, [&](int64_t kv_head, int worker) {
        WorkspaceAllocator mine = memory[worker];
        backward_kv_head<T, Out>(problem, kv_head, carve_backward(problem, mine));
      });
    });
  });
  zero_unused_d_gate(problem);
  zero_unused_gradients(problem);
  return {};
}

}  // namespace fa3::cpu
