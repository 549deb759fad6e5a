// SPDX-License-Identifier: Apache-2.0
//
// How far a result is from the double-precision reference, and how far it may be. The measure is a
// same-dtype standard attention: an engine may err at most twice as much, plus rounding of the
// output. (FlashAttention's own rule; it needs no number that merely happened to pass.)
#pragma once

#include "cli/operands.h"

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

// 2 x the baseline's error + 2 units in the last place of the output's dtype.
Error allowed_error(const Error& baseline, fa3_dtype dtype);
// The same for gradients, and more where their algorithm differs from a baseline that stores P:
// P = exp(s - LSE) errs by the rounding of a float32 LSE; and in rows that see few keys
// dP - rowsum(dO O) cancels, to exactly 0 in the baseline, to the rounding of float32 sums and of O
// in an engine that recomputes it.
Error allowed_gradient_error(const Error& baseline, fa3_dtype dtype, double largest_lse);
double largest_magnitude(const HostTensor& tensor);  // of its finite elements
// 1e-3 + 2^-21 max|s|; max|s| is bounded by scale * max|q| * max|k| over rows, or the softcap.
double allowed_lse_error(const Operands& operands, const fa3_options& options);

inline bool within(const Error& error, const Error& allowed) {
  return error.overall <= allowed.overall && error.row <= allowed.row;
}

}  // namespace fa3::cli
