// SPDX-License-Identifier: Apache-2.0
//
// The acceptance matrix is a product of a dozen factors and far too large. These functions choose
// from it deterministically, so that every pair of values of any two factors occurs.
#pragma once

#include <cstdint>
#include <vector>

#include "support/cases/case.h"
#include "support/runs/ability.h"

namespace fa3::test {

// Rows of value indices, one index per factor, that cover all pairs. Greedy, repeatable.
std::vector<std::vector<int>> all_pairs(const std::vector<int>& sizes, uint64_t seed);

// The features of attention that the engine has, all pairs of them, over the lengths of
// FlashAttention-3's tests and awkward ones. A value of a feature is left out, and counted, where
// the engine cannot do it alone.
struct MatrixLimits {
  int64_t largest_scores;  // of seqlen_q * seqlen_k; longer ones are left out
  int64_t most_work;       // multiplications; heavier ones lose heads, batch and head dim
  int rounds;              // repeated with other pairings
};
std::vector<Case> dense_matrix(const EngineUnderTest& engine, Pass pass,
                               const MatrixLimits& limits);
std::vector<Case> packed_matrix(const EngineUnderTest& engine, Pass pass,
                                const MatrixLimits& limits);

// Lengths beyond 4096, forward only.
std::vector<Case> long_cases();

// One case from anywhere in the engine's space, small enough to run hundreds of. Those of an engine
// that takes everything are the same on every machine.
Case random_case(const EngineUnderTest& engine, uint64_t seed);

}  // namespace fa3::test
