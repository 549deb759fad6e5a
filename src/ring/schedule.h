// SPDX-License-Identifier: Apache-2.0
//
// What a rank of a ring does, as plain numbers: which keys it gets from whom, and the calls over
// them. python/fa3/distributed has the same for packed documents, teams and larger stages.
// Next: run.h, which executes it.
#pragma once

#include <fa3/ring.h>

#include <cstdint>
#include <vector>

namespace fa3::ring {

// Half-open: rows of a sequence, or of a rank's part of it.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

inline constexpr int64_t kUnbounded = -1;

// A query sees the keys up to `left` before and `right` behind its own place, or all of a side.
struct Mask {
  int64_t left = kUnbounded;
  int64_t right = kUnbounded;
};

struct Whole {
  int64_t seqlen = 0;
  int64_t layout = FA3_RING_ZIGZAG;
  int32_t world = 1;
  Mask mask;
};

// Rows of a rank, keys of a stage, and the mask between them as options say it: bottom-right
// aligned.
struct Call {
  Range rows;
  Range keys;
  Mask window;
  int64_t shift = 0;
  bool operator==(const Call& other) const {
    return rows == other.rows && keys == other.keys && window.left == other.window.left &&
           window.right == other.window.right && shift == other.shift;
  }
};

// The keys of one rank, and what another computes with them.
struct Stage {
  std::vector<Range> keys;  // of the source's rows, in order: what is sent
  int64_t num_keys = 0;     // of all ranges, which lie one after the other where they arrive
  std::vector<Call> calls;

  // Where the keys of a call are among the source's rows.
  Range rows_of_source(const Call& call) const;
};

// The rows of the whole that a rank has, in order; none is empty.
std::vector<Range> rows_of(const Whole& whole, int32_t rank);
int64_t num_rows(const Whole& whole, int32_t rank);

Stage stage_of(const Whole& whole, int32_t rank, int32_t source);

// Whether any row of the rank sees a key of the source.
bool sees(const Whole& whole, int32_t rank, int32_t source);

// How many ranks behind `source` the last one is that sees a key of it; 0 if no other does.
int32_t farthest_reader(const Whole& whole, int32_t source);

}  // namespace fa3::ring
