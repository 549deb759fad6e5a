// SPDX-License-Identifier: Apache-2.0
//
// Calls at the edges of the interface: extents of zero, arrays of lengths and places that hold
// anything, memory that ends with the tensors, gradients in the layouts that autograd makes. Each
// is data, so a seed is a test case. What such a call must keep does not depend on its numbers:
// edge_run.h.
#pragma once

#include <fa3/fa3.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/engines.h"

namespace fa3::test {

enum class EdgeKind { forward, backward, append };

// Strides of dO, of which autograd makes any.
enum class GradientLayout { plain, one_row, one_head, one_entry, odd_rows };

struct EdgeCall {
  EdgeKind kind = EdgeKind::forward;
  int64_t batch = 2, seqlen_q = 5, seqlen_k = 7;  // packed: rows of the tensors for each sequence
  int64_t heads_k = 1, group = 2, dim = 16, dim_v = 24;
  fa3_dtype dtype = FA3_BFLOAT16, cache_dtype = FA3_BFLOAT16;
  bool packed_q = false, packed_k = false, used_q = false, used_k = false;
  int64_t spare_q = 0, spare_k = 0;  // packed: rows of the tensors that no sequence owns
  bool bounded = false;              // packed: max_seqlen is set
  bool followed = false;             // packed: behind the array of starts lie other numbers
  // A cache: pages, other entries than sequences, keys that do not count. No pages: page_size 0.
  int64_t page_size = 0, pages = 0, max_pages = 0, entries = 0;
  bool indexed = false, padded_left = false;
  bool garbage = false;  // the arrays hold anything
  bool heads_first = false;
  GradientLayout gradient = GradientLayout::plain;
  bool causal = false;
  int64_t left = -1, right = -1, chunk = 0;
  int32_t shift = 0, sm_margin = 0;
  float softcap = 0;
  bool block_mask = false;
  bool sink = false, lse = true, d_lse = false, deterministic = true, batch_invariant = false;
  int num_splits = 0;
  bool rotary = false, queries = false;  // append
  int64_t positions = 0;
  uint64_t seed = 1;  // of the contents

  bool paged() const { return page_size > 0; }
  int64_t heads_q() const { return heads_k * group; }
  int64_t rows_q() const { return packed_q ? batch * seqlen_q + spare_q : seqlen_q; }
  int64_t rows_k() const { return packed_k ? batch * seqlen_k + spare_k : seqlen_k; }
  bool has_no_queries() const { return batch == 0 || seqlen_q == 0; }
  bool has_no_keys() const;
  // Whether host memory's arrays would name an entry or a page that does not exist.
  bool names_nothing() const;
  // Sequences that append to one place race.
  void keep_places_apart();
};

// Every combination of what may be empty, in every form of a call.
std::vector<EdgeCall> empty_calls();

// Calls that never ended, or ended the process.
std::vector<EdgeCall> fallen_calls();

// Anything, small enough to run hundreds of: valid, partly empty, or with garbage in its arrays.
EdgeCall random_edge_call(const EngineUnderTest& engine, uint64_t seed);

std::string describe(const EdgeCall& call);

}  // namespace fa3::test
