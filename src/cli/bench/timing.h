// SPDX-License-Identifier: Apache-2.0
//
// How `fa3 bench` and `fa3 demo` time a call, and how they count its work.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cli/call/operands.h"

namespace fa3::cli {

struct Timing {
  double median = 0;  // seconds
  double min = 0;
  double p10 = 0;
  double p90 = 0;
  double max = 0;
  int repeats = 0;  // timed calls; the warm-up is not among them
};

// Times at least one call.
Timing timing_of(std::vector<double> seconds);

// One call to warm up, then `repeats` timed ones. 0 chooses: at least 7, more for short calls,
// fewer where 7 would take more than 20 seconds. `call` returns the seconds that it took.
Timing time_call(const std::function<double()>& call, int repeats = 0);

// Multiplications and additions of the matrix products only: forward 2 (d + dv) for each query head
// and (query, key) pair, backward 2.5 times that. Causal counts pairs on the diagonal as one half,
// the convention of the FlashAttention papers: seqlen^2 / 2.
double forward_flops(const Shape& shape, bool causal);
double backward_flops(const Shape& shape, bool causal);

}  // namespace fa3::cli
