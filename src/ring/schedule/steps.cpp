// SPDX-License-Identifier: Apache-2.0
#include "ring/schedule/steps.h"

#include <algorithm>

namespace fa3::ring {

std::vector<Range> Steps::rows_without_end() const {
  std::vector<Range> ended;
  for (const auto& stage : of_stage) {
    for (const Step& step : stage) {
      if (step.ends) ended.push_back(step.call.rows);
    }
  }
  std::ranges::sort(ended, {}, &Range::begin);
  std::vector<Range> found;
  int64_t row = 0;
  const auto leave = [&](int64_t end) {
    if (row < end) found.push_back({row, end});
  };
  for (const Range& rows : ended) {
    leave(rows.begin);
    row = std::max(row, rows.end);
  }
  leave(num_rows(whole, rank));
  return found;
}

Steps steps_of(const Whole& whole, int32_t rank) {
  Steps steps = {.whole = whole, .rank = rank};
  for (int32_t i = 0; i < whole.world; ++i) steps.farthest.push_back(farthest_reader(whole, i));
  const Range all = {0, num_rows(whole, rank)};
  bool first = true;
  for (int32_t i = 0; i < whole.world; ++i) {
    steps.stages.push_back(stage_of(whole, rank, steps.before(i)));
    std::vector<Step>& here = steps.of_stage.emplace_back();
    for (const Call& call : steps.stages.back().calls) {
      // Rows begin with what the first call has of them, or a call of no keys.
      if (first && call.rows != all) {
        here.push_back({.call = {.rows = all}, .continues = false});
        first = false;
      }
      here.push_back({.call = call, .continues = !first});
      first = false;
    }
  }
  // A rank without rows writes the gradient of a sink all the same.
  if (first) steps.of_stage.front().push_back({.call = {.rows = all}, .continues = false});
  for (auto& stage : steps.of_stage) {
    for (Step& step : stage) {
      step.lengths_at = steps.lengths.size();
      for (const auto* of : {&step.call.cu_rows, &step.call.cu_keys}) {
        steps.lengths.insert(steps.lengths.end(), of->begin(), of->end());
      }
    }
  }
  std::vector<Range> later;
  for (auto stage = steps.of_stage.rbegin(); stage != steps.of_stage.rend(); ++stage) {
    for (auto step = stage->rbegin(); step != stage->rend(); ++step) {
      const Range& rows = step->call.rows;
      step->ends = std::ranges::none_of(later, [&](const Range& other) {
        return other.begin < rows.end && rows.begin < other.end;
      });
      later.push_back(rows);
    }
  }
  return steps;
}

}  // namespace fa3::ring
