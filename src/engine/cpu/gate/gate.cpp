// SPDX-License-Identifier: Apache-2.0
#include "engine/cpu/gate/gate.h"

#include <cmath>

#include "engine/cpu/machine/parallel.h"
#include "engine/cpu/rows.h"

namespace fa3::cpu {

double gate_factor(const OutputGate& gate, int64_t b, int64_t row, int64_t head, int64_t column) {
  if (!gate.on) return 1;
  return visit_dtype(gate.logits.dtype, [&]<class T>(T) {
    const T* const logits = gate.logits.at<T>(b, row, head);
    return 1 / (1 + std::exp(-double{to_float(logits[gate.per_row ? 0 : column])}));
  });
}

void GateGradient::store(int64_t column, double gradient) const {
  visit_dtype(problem_.d_gate.dtype, [&]<class T>(T) {
    problem_.d_gate.at<T>(b_, row_, head_)[column] = from_float<T>(static_cast<float>(gradient));
  });
}

void GateGradient::add(int64_t column, double gradient) {
  if (!problem_.has_d_gate) return;
  if (!problem_.gate.per_row) return store(column, gradient);
  sum_ += gradient;
  if (column == problem_.head_dim_v - 1) store(0, sum_);
}

void zero_unused_d_gate(const BackwardProblem& problem) {
  if (!problem.has_d_gate) return;
  zero_unused_rows(problem.d_gate, problem.lengths_q, problem.batch, problem.heads_q,
                   problem.gate.per_row ? 1 : problem.head_dim_v);
}

Operand carve_gated(const BackwardProblem& problem, WorkspaceAllocator& allocator) {
  if (!problem.gate.on) return problem.d_o;
  const int64_t row = problem.heads_q * problem.head_dim_v;
  const Lengths& rows = problem.lengths_q;
  return {.data = allocator.take<std::byte>(rows.total, problem.heads_q, problem.head_dim_v,
                                            size_of(problem.d_o.dtype)),
          .dtype = problem.d_o.dtype,
          .batch_stride = rows.packed() ? 0 : rows.max * row,
          .row_stride = row,
          .head_stride = problem.head_dim_v};
}

void apply_gate(const BackwardProblem& problem, const Operand& gated, int num_threads) {
  if (!problem.gate.on) return;
  const auto apply_to_row = [&]<class Out>(Out, int64_t b, int64_t row, int64_t head) {
    const Out* const o = problem.o.at<Out>(b, row, head);
    const Out* const d_o = problem.d_o.at<Out>(b, row, head);
    Out* const to = gated.at<Out>(b, row, head);
    GateGradient d_gate(problem, b, row, head);
    for (int64_t c = 0; c < problem.head_dim_v; ++c) {
      double factor = gate_factor(problem.gate, b, row, head, c);
      // As in a row that sees no key: its NaN would reach the keys beside it.
      if (std::isnan(factor) && to_float(o[c]) == 0) factor = 0;
      const auto gradient = double{to_float(d_o[c])};
      to[c] = from_float<Out>(static_cast<float>(gradient * factor));
      d_gate.add(c, gradient * double{to_float(o[c])} * (1 - factor));
    }
  };
  const int64_t heads = problem.heads_q;
  parallel_for(problem.batch * heads, num_threads, [&](int64_t task, int) {
    const Rows rows = problem.lengths_q.rows_of(task / heads);
    visit_dtype(problem.d_o.dtype, [&]<class Out>(Out zero) {
      for (int64_t r = 0; r < rows.used; ++r) {
        apply_to_row(zero, task / heads, rows.begin + r, task % heads);
      }
    });
  });
  zero_unused_d_gate(problem);
}

}  // namespace fa3::cpu
