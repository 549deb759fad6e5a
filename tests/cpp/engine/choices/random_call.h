// SPDX-License-Identifier: Apache-2.0
// Random problems for planners: every mix of features, with the extents at which choices change. A
// number is a problem, the same on every machine. No tensor has memory.
#pragma once

#include <string>
#include <vector>

#include "core/problem.h"

namespace fa3::test {

// A problem and what it refers to. Not copyable: the problem points into it.
class RandomCall {
 public:
  explicit RandomCall(uint64_t number);
  RandomCall(const RandomCall&) = delete;
  RandomCall& operator=(const RandomCall&) = delete;

  // The forward's part is a problem of its own.
  const BackwardProblem& problem() const { return problem_; }

 private:
  struct Generator;

  BackwardProblem problem_;
  fa3_score_function score_{};
  std::vector<fa3_captured_tensor> captured_;
};

// A problem in a line of text.
std::string describe(const RandomCall& call);

}  // namespace fa3::test
