// SPDX-License-Identifier: Apache-2.0
//
// What a rank of a ring does, as plain numbers: which keys it gets from whom, and the calls over
// them. cover.h has the fewest calls that see what a mask sees, also for python/fa3/distributed,
// which has teams, larger stages and other layouts. Next: steps.h.
#pragma once

#include <fa3/ring.h>

#include <cstdint>
#include <vector>

#include "ring/schedule/cover.h"

namespace fa3::ring {

// The whole is a stream of documents, one after the other; a batch of sequences is one document.
struct Whole {
  std::vector<int64_t> lengths;  // of the documents
  int64_t layout = FA3_RING_ZIGZAG;
  int32_t world = 1;
  Mask mask;
  bool is_packed = false;  // a call may have several sequences
};

// The keys of one rank, and what another computes with them.
struct Stage {
  std::vector<Range> keys;  // of the source's rows, in order: what is sent
  std::vector<Call> calls;  // their keys are rows of the source, too

  // From the first key to the last one: what has room where keys arrive. Keys between those that
  // were sent are whatever was there, and no call sees them.
  Range hull() const { return keys.empty() ? Range{} : Range{keys.front().begin, keys.back().end}; }
};

// The rows of a rank, in the order of the stream; neighbours are one piece, and none is empty.
std::vector<Piece> pieces_of(const Whole& whole, int32_t rank);
int64_t num_rows(const Whole& whole, int32_t rank);

Stage stage_of(const Whole& whole, int32_t rank, int32_t source);

// Whether any row of the rank sees a key of the source.
bool sees(const Whole& whole, int32_t rank, int32_t source);

// How many ranks behind `source` the last one is that sees a key of it; 0 if no other does.
int32_t farthest_reader(const Whole& whole, int32_t source);

}  // namespace fa3::ring
