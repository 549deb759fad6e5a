// SPDX-License-Identifier: Apache-2.0
//
// The inputs of a case: random normal data where the contract says that a call may look, and a
// chosen value (NaN, normally) everywhere else.
#pragma once

#include <cstdint>
#include <vector>

#include "support/cases/case.h"
#include "support/cases/tensor.h"

namespace fa3::test {

struct Inputs {
  Tensor q, k, v, d_o;
  Tensor sink;                                             // empty unless the case has one
  Tensor d_lse;                                            // likewise
  Tensor gate;                                             // likewise
  Tensor q_descale, k_descale, v_descale, k_mean, v_mean;  // likewise
  MaskData mask;                                           // likewise
  std::vector<int32_t> cu_q, cu_k;                         // empty unless packed
  // Empty unless k and v lie in a cache (support/cases/cache.h).
  std::vector<int32_t> page_table, batch_index, left_padding;
  int64_t max_pages = 0;
};

Inputs make_inputs(const Case& c);
// Inputs without gradients of the outputs.
Inputs make_forward_inputs(const Case& c);
// Tensors without contents, for questions.
Inputs make_shapes(const Case& c);

// Rows that no sequence uses, and the memory between rows.
void fill_invisible(const Case& c, float value, Inputs* inputs);
void fill_unused_rows(const Case& c, const Side& side, float value, Tensor* tensor);

// Whether the row belongs to a sequence's used part.
bool is_used_row(const Case& c, const Side& side, int64_t batch, int64_t row);

}  // namespace fa3::test
