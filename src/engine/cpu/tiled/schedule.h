// SPDX-License-Identifier: Apache-2.0
//
// What there is to do, sequence by sequence, and in which order: longest tasks first, so that no
// thread is left with a long one at the end. Pure functions of the problem's shape. Next:
// forward.cpp.
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "engine/cpu/tiled/tile_shape.h"

namespace fa3::cpu {

// How one sequence is computed. It depends on nothing but the sequence's own lengths, so a result
// does not depend on the sequences beside it.
struct SequencePlan {
  Rows q_rows, k_rows;
  int64_t num_rows = 0;   // queries times heads of a group: what one key head serves
  KeyRange visible;       // keys that some query sees
  int64_t num_parts = 1;  // of the visible keys; more than one only for few rows
  int64_t part_keys = 0;
  bool streams = false;        // so few rows that keys are read in place
  int64_t heads_together = 1;  // key heads of one task; does not change results

  KeyRange part(int64_t index) const;
};

SequencePlan plan_sequence(const Problem& problem, int64_t sequence);

// The tasks of one sequence, in the order of the run: parts (or blocks of rows, last block first,
// since a causal mask makes that the longest) outside, key heads or groups of them inside.
struct SequenceTasks {
  int64_t sequence = 0;
  int64_t first_task = 0;
  int64_t num_tasks = 0;
  int64_t first_partial = 0;  // in floats; used if num_parts > 1
  int64_t cost = 0;           // of one task
};

struct Totals {
  int64_t num_tasks = 0;
  int64_t max_parts = 1;
};

// Costs the same for any batch whose sequences are alike.
Totals count_tasks(const Problem& problem, int64_t block_q);

// The tasks of all sequences.
class Schedule {
 public:
  // `table` has an entry per sequence; it is not used, and may be null, where sequences are alike.
  Schedule(const Problem& problem, const TileShape& shape, int64_t block_q, SequenceTasks* table);

  // The entry that holds `task`.
  SequenceTasks find(int64_t task) const;

 private:
  int64_t batch_;
  const SequenceTasks* table_ = nullptr;  // longest tasks first; null: all sequences are as ...
  SequenceTasks first_;                   // ... the first one
  int64_t partial_floats_ = 0;            // of one sequence
};

// Enough floats for every partial result; also an upper bound for shorter lengths in the same
// tensors, since a workspace query may not know them.
int64_t partials_bound(const Problem& problem, const TileShape& shape);

}  // namespace fa3::cpu
