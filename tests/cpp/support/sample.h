// SPDX-License-Identifier: Apache-2.0
//
// The acceptance matrix is a product of a dozen factors and far too large. These functions choose
// from it deterministically, so that every pair of values of any two factors occurs.
#pragma once

#include <cstdint>
#include <vector>

#include "support/case.h"

namespace fa3::test {

// Rows of value indices, one index per factor, that cover all pairs. Greedy, repeatable.
std::vector<std::vector<int>> all_pairs(const std::vector<int>& factor_sizes, uint64_t seed);

// The features of attention, all pairs of them, over the lengths of FlashAttention-3's tests and
// awkward ones.
struct MatrixLimits {
  int64_t largest_scores;  // of seqlen_q * seqlen_k; longer ones are left out
  int64_t most_work;       // multiplications; heavier ones lose heads, batch and head dim
  int rounds;              // repeated with other pairings
};
std::vector<Case> dense_matrix(const MatrixLimits& limits);
std::vector<Case> packed_matrix(const MatrixLimits& limits);

// Lengths beyond 4096, forward only.
std::vector<Case> long_cases();

// One case from anywhere in the space, small enough to run hundreds of.
Case random_case(uint64_t seed);

}  // namespace fa3::test
