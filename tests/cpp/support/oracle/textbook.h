// SPDX-License-Identifier: Apache-2.0
//
// Attention and its gradients from the formulas, in double precision: the oracle of every suite.
// It shares no code with the library. Its gradients are themselves held to finite differences.
#pragma once

#include "support/cases/case.h"
#include "support/cases/inputs.h"
#include "support/cases/tensor.h"

namespace fa3::test {

struct Textbook {
  Values o, lse;             // lse has dim 1
  Values dq, dk, dv, dsink;  // dsink is (1, 1, heads, 1)
  Values d_gate;             // with a gate
  Values max_logit;          // (batch, 1, heads, 1): of scale * q.k, over what is visible
  double largest_logit = 0;  // of |scale * q.k|
  double largest_score = 0;  // of |softcap(scale * q.k)|, over what is visible

  // One number per row: its size had no term cancelled another, which is what roundoff is relative
  // to. Where a row sees one key, dP - dO.O is 0, and computed as noise; an O of one column may be
  // 0 by chance.
  Values o_terms, dq_terms, dk_terms, dv_terms, dsink_terms, d_gate_terms;
};

Textbook textbook_forward(const Case& c, const Inputs& inputs);
Textbook textbook_backward(const Case& c, const Inputs& inputs);  // with the forward's results

}  // namespace fa3::test
