// SPDX-License-Identifier: Apache-2.0
//
// The output gate on the CPU: O = sigmoid(g) O', with attention's own output O'. The backward's
// first step is
//   dO' = sigmoid(g) dO,   dg = dO O (1 - sigmoid(g)),
// dg added up over the columns where a row has one logit. What follows reads dO' for dO, but for
// D = rowsum(dO O), which is rowsum(dO' O').
#pragma once

#include "core/problem.h"
#include "core/workspace.h"

namespace fa3::cpu {

// sigmoid(g) of a row's columns in turn; all 1 without a gate.
double gate_factor(const OutputGate& gate, int64_t b, int64_t row, int64_t head, int64_t column);

// Multiplies a row of O' by them. 0 stays 0, and so a row that sees no key, whatever its logits
// are.
template <class Number>
void apply_gate(const Problem& problem, int64_t b, int64_t row, int64_t head, Number* o) {
  for (int64_t c = 0; c < problem.head_dim_v; ++c) {
    if (o[c] != 0) o[c] *= static_cast<Number>(gate_factor(problem.gate, b, row, head, c));
  }
}

// Takes dg of a row's columns in turn, and writes it.
class GateGradient {
 public:
  GateGradient(const BackwardProblem& problem, int64_t b, int64_t row, int64_t head)
      : problem_(problem), b_(b), row_(row), head_(head) {}
  void add(int64_t column, double gradient);

 private:
  void store(int64_t column, double gradient) const;

  const BackwardProblem& problem_;
  int64_t b_, row_, head_;
  double sum_ = 0;
};

void zero_unused_d_gate(const BackwardProblem& problem);

// Memory for dO', in dO's type; dO itself where there is no gate.
Operand carve_gated(const BackwardProblem& problem, WorkspaceAllocator& allocator);
// Writes dO' and dg.
void apply_gate(const BackwardProblem& problem, const Operand& gated, int num_threads);

}  // namespace fa3::cpu
