// SPDX-License-Identifier: Apache-2.0
// A row of the catalogue: a kernel, when it is chosen, and why. Host only. Next: forward.h.
#pragma once

#include <cstdint>

#include "engine/cuda/catalogue/rows.h"
#include "engine/cuda/host/needs.h"
#include "engine/hopper/config/kernel.h"

namespace fa3::hopper {

using cuda::join, cuda::Need, cuda::Needs;

// For which sizes a kernel is the best. Where no kernel that serves a call suits its sizes, the
// first that serves is taken all the same.
struct Limits {
  int64_t least_keys = 0;         // of the longest sequence; a batch-invariant call has too few
  int64_t most_keys = INT64_MAX;  // that a query may see
  int64_t most_rows = INT64_MAX;  // query rows of a sequence, heads packed
  int64_t most_rows_of_key = INT64_MAX;  // query rows that see a key, on average
};

struct Row {
  Kernel kernel = {};
  Limits limits = {};
  Needs only_for = {};     // the call must have one of these
  Needs score_kinds = {};  // of a kernel with a score function: the functions that it takes
  double row_cost = 1;     // time of a tile's row beside one of a tile of three warpgroups
  bool built = true;       // false: compiled at run time
  const char* why = "";
};

}  // namespace fa3::hopper
