// SPDX-License-Identifier: Apache-2.0
//
// textbook_forward() and the baseline's O in one go, row by row (forward_rows.h), for machines
// where a GPU does it in a hundredth of the time. Operands go in as arrays without gaps and results
// come out as such, so that they can be moved to and fro at once.
#pragma once

#include <vector>

#include "support/cases/inputs.h"
#include "support/oracle/compare.h"
#include "support/oracle/forward_rows.h"
#include "support/oracle/textbook.h"
#include "support/runs/run.h"

namespace fa3::test {

// What a result is held to.
struct Truth {
  Textbook book;
  ForwardRun baseline;  // o alone
};

struct OracleOperands {
  std::vector<double> q, kt, v, v_norms;
  std::vector<float> sink;
  std::vector<HeadOperands> heads;
  int64_t o_size = 0, rows = 0;
  int most_queries = 0, most_keys = 0;
};

struct OracleResults {
  std::vector<double> o, lse, terms, largest, base_o;
};

// Not of block masks, nor of float8 (support/cases/fp8.h makes numbers of them).
bool oracle_does(const Case& c);
OracleOperands oracle_operands(const Case& c, const Inputs& inputs);
// Without its pointers.
ForwardCall oracle_call(const Case& c);
Truth oracle_truth(const Case& c, const OracleOperands& operands, const OracleResults& results);

// Whether two of them say the same, the baselines as far as errors are measured by them.
testing::AssertionResult same_truth(const Truth& got, const Truth& want);

// Computes on the calling thread.
Truth forward_truth_on_host(const Case& c, const Inputs& inputs);

}  // namespace fa3::test
