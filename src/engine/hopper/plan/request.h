// SPDX-License-Identifier: Apache-2.0
// What the choice of a forward kernel depends on, found once. Next: select/serving.h.
#pragma once

#include "engine/cuda/host/needs.h"
#include "engine/hopper/host/captured_tile.h"
#include "engine/hopper/plan/forward_call.h"

namespace fa3::hopper {

// What a kernel's columns and Limits are compared with.
struct Sizes {
  int64_t head_dim = 0, head_dim_v = 0;  // of a launch
  int64_t longest = 0;                   // sequence of keys; of a batch-invariant call 0
  int64_t keys = 0;                      // that a query may see
  int64_t rows = INT64_MAX;              // of a sequence's queries, heads packed, if they are few
};

struct Request {
  const Problem& problem;
  ForwardCall call;
  Needs needs;
  Sizes sizes;
  int num_sms = 0;              // that may be counted later: no need depends on it
  int captured_tile = kNoTile;  // the tensor of the score function that TMA can bring by tiles
};

// Query rows that see a key, on average; of a call that has keys.
int64_t rows_of_key(const ForwardCall& call);

// captured_tile: as in a Request.
Needs needs_of(const Problem& problem, const ForwardCall& call, int captured_tile = kNoTile);

Request request_of(const Problem& problem, int num_sms = 0);

}  // namespace fa3::hopper
