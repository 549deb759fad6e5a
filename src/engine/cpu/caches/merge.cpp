// SPDX-License-Identifier: Apache-2.0
//
// Merges partial attention over disjoint key sets: lse = log sum_i exp(lse_i),
// o = sum_i exp(lse_i - lse) o_i. Weights are computed relative to the largest lse_i; partials of
// an infinite one share the row.
#include "engine/cpu/caches/caches.h"

#include <cmath>
#include <limits>

#include "engine/cpu/machine/parallel.h"
#include "engine/cpu/rows.h"

namespace fa3::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The partial results of a row, in order: what lies apart is the last.
struct Partials {
  const MergeProblem& problem;
  const float *lse, *o, *lse_other, *o_other;

  Partials(const MergeProblem& p, int64_t b, int64_t head, int64_t row)
      : problem(p),
        lse(p.lse_partial.at(b, head, row)),
        o(p.o_partial.at<float>(b, row, head)),
        lse_other(p.other.on ? p.other.lse.at(b, head, row) : nullptr),
        o_other(p.other.on ? p.other.o.at<float>(b, row, head) : nullptr) {}

  int64_t count() const { return problem.num_partials + (problem.other.on ? 1 : 0); }
  float lse_of(int64_t i) const {
    return i == problem.num_partials ? *lse_other : lse[i * problem.lse_partial_stride];
  }
  const float* o_of(int64_t i) const {
    return i == problem.num_partials ? o_other : o + i * problem.o_partial_stride;
  }
};

// A row is written after all its partials were read, so the outputs may alias a partial.
template <class Out>
void merge_row(const MergeProblem& problem, int64_t b, int64_t head, int64_t row) {
  const Partials partials(problem, b, head, row);
  float max = -kInfinity;
  for (int64_t i = 0; i < partials.count(); ++i) max = std::fmax(max, partials.lse_of(i));
  const float shift = max == -kInfinity ? 0.0f : max;
  float sum = 0;
  for (int64_t i = 0; i < partials.count(); ++i) sum += exp_difference(partials.lse_of(i), shift);
  const float lse = sum == 0 ? -kInfinity : shift + std::log(sum);
  const float inverse = sum == 0 ? 0.0f : 1 / sum;
  Out* o = problem.o.at<Out>(b, row, head);
  for (int64_t c = 0; c < problem.head_dim_v; ++c) {
    float value = 0;
    for (int64_t i = 0; i < partials.count(); ++i) {
      const float weight = exp_difference(partials.lse_of(i), shift) * inverse;
      // A partial without keys has weight 0 and counts for nothing, whatever its o holds.
      if (weight != 0) value += weight * partials.o_of(i)[c];
    }
    o[c] = from_float<Out>(value);
  }
  if (problem.lse.data != nullptr) *problem.lse.at(b, head, row) = lse;
}

}  // namespace

Status run_merge(const MergeProblem& problem, void*) {
  visit_dtype(problem.o.dtype, [&]<class Out>(Out) {
    parallel_for(problem.batch * problem.rows, problem.num_threads, [&](int64_t task, int) {
      for (int64_t head = 0; head < problem.heads; ++head) {
        merge_row<Out>(problem, task / problem.rows, head, task % problem.rows);
      }
    });
  });
  return {};
}

}  // namespace fa3::cpu
