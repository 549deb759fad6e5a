// SPDX-License-Identifier: Apache-2.0
//
// Problems for the tests of the forward's parts: shapes, and dense float tensors behind them.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "core/problem.h"

namespace fa3::cpu::test {

inline Problem shape_only(int64_t batch, int64_t seqlen_q, int64_t seqlen_k, int64_t heads_q,
                          int64_t heads_k, int64_t head_dim) {
  Problem problem;
  problem.batch = batch;
  problem.heads_q = heads_q;
  problem.heads_k = heads_k;
  problem.head_dim = problem.head_dim_v = head_dim;
  problem.lengths_q = {.max = seqlen_q, .total = batch * seqlen_q};
  problem.lengths_k = {.max = seqlen_k, .total = batch * seqlen_k};
  problem.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  return problem;
}

// One sequence, (row, head, dim).
struct DenseProblem : Problem {
  DenseProblem(int64_t seqlen_q, int64_t seqlen_k, int64_t heads, int64_t dim)
      : Problem(shape_only(1, seqlen_q, seqlen_k, heads, heads, dim)),
        q_data(seqlen_q * heads * dim),
        k_data(seqlen_k * heads * dim),
        v_data(seqlen_k * heads * dim),
        o_data(seqlen_q * heads * dim),
        lse_data(seqlen_q * heads) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (auto* data : {&q_data, &k_data, &v_data}) {
      for (float& x : *data) x = normal(random);
    }
    q = {q_data.data(), DType::float32, 0, heads * dim, dim};
    k = {k_data.data(), DType::float32, 0, heads * dim, dim};
    v = {v_data.data(), DType::float32, 0, heads * dim, dim};
    o = {o_data.data(), DType::float32, 0, heads * dim, dim};
    lse = {lse_data.data(), 0, seqlen_q, 1};
  }
  DenseProblem(const DenseProblem&) = delete;

  std::vector<float> q_data, k_data, v_data, o_data, lse_data;
};

}  // namespace fa3::cpu::test
