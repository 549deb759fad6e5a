// SPDX-License-Identifier: Apache-2.0
//
// How far a result is from the double-precision reference, measured as docs/numerics.md says;
// error_rule.h says how far it may be.
#pragma once

#include "cli/call/operands.h"

namespace fa3::cli {

// Relative errors in the 2-norm. An element that is NaN or infinite on one side only is an infinite
// error. `row`: the worst row's error over the larger of its own norm and the root mean square norm
// of all rows, so that rows which cancel to nothing are measured against their neighbours.
struct Error {
  double overall = 0;
  double row = 0;
};

// Rows are the last dimension.
Error error_of(const HostTensor& got, const HostTensor& expected);
// Largest absolute difference; equal infinities differ by 0.
double max_abs_error(const HostTensor& got, const HostTensor& expected);

// What the rule allows, overall and for a row.
Error allowed_error(const Error& baseline, double roundoff);
// A bound of max |s|: scale * max |q| * max |k| over rows, or the softcap.
double largest_score(const Operands& operands, const fa3_options& options);

inline bool within(const Error& error, const Error& allowed) {
  return error.overall <= allowed.overall && error.row <= allowed.row;
}

}  // namespace fa3::cli
