// SPDX-License-Identifier: Apache-2.0
//
// The stages of one rank, and its calls in the order in which they run.
#pragma once

#include <vector>

#include "ring/messages/nccl.h"
#include "ring/schedule/schedule.h"

namespace fa3::ring {

struct Step {
  Call call;
  bool continues = true;  // goes on from what earlier steps have computed for these rows
  bool ends = false;      // no later step has any of these rows
  size_t lengths_at = 0;  // where the call's are among those of all
};

// Stage i has the keys of the rank i before this one.
struct Steps {
  Whole whole;
  int32_t rank = 0;
  std::vector<Stage> stages;
  std::vector<std::vector<Step>> of_stage;
  std::vector<int32_t> lengths;   // cumulative: of the rows, then of the keys, of each call
  std::vector<int32_t> farthest;  // farthest_reader() of each rank

  int32_t world() const { return whole.world; }
  int32_t before(int32_t by) const { return (rank - by + whole.world) % whole.world; }
  int32_t behind(int32_t by) const { return (rank + by) % whole.world; }
  // The rows that the steps with `ends` leave out.
  std::vector<Range> rows_without_end() const;
};

Steps steps_of(const Whole& whole, int32_t rank);

}  // namespace fa3::ring
