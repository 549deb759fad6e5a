// SPDX-License-Identifier: Apache-2.0
//
// Runs a case on an engine through the C ABI, in the engine's memory: poisoned outputs, a poisoned
// workspace of exactly the size asked for, and a look at every byte around them afterwards.
#pragma once

#include <fa3/fa3.h>

#include <string>

#include "support/cases/case.h"
#include "support/cases/inputs.h"
#include "support/cases/tensor.h"
#include "support/engines.h"
#include "support/runs/placement.h"

namespace fa3::test {

struct ForwardRun {
  Tensor o, lse;
  Tensor max_logit;     // empty unless the case wants it
  std::string problem;  // "" or what went wrong: a status, an unwritten output, a damaged guard
};

struct BackwardRun {
  Tensor dq, dk, dv, dsink;
  Tensor d_gate;  // empty unless the case has a gate
  std::string problem;
};

// Who makes the lists of a block mask.
enum class Lists { of_the_call, made_before };

ForwardRun run_forward(const EngineUnderTest& engine, const Case& c, const Inputs& inputs,
                       Lists lists = Lists::of_the_call);

// `forward` gives o and lse. Its rows that no sequence uses are overwritten with NaN first.
BackwardRun run_backward(const EngineUnderTest& engine, const Case& c, const Inputs& inputs,
                         const ForwardRun& forward, bool deterministic = true,
                         Lists lists = Lists::of_the_call);

// The params of those calls, for tests that change them first.
fa3_options make_options(fa3_engine_id engine, const Case& c, const Inputs& inputs);
fa3_forward_params forward_params(fa3_engine_id engine, const Case& c, const Inputs& inputs,
                                  const Tensor& o, const Tensor& lse);

// Whether the engine does the case: shapes, strides and alignment count, contents do not.
fa3_status ask_forward(const EngineUnderTest& engine, const Case& c);
fa3_status ask_forward(const EngineUnderTest& engine, const Case& c, const Inputs& shapes);
fa3_status ask_backward(const EngineUnderTest& engine, const Case& c);

// The view of a (batch, row, head, dim) tensor, and of an LSE, that a call of this side takes.
fa3_tensor view_of(const Side& side, const Tensor& tensor);
fa3_tensor lse_view(const Side& side, const Tensor& lse);

// Moves all that a forward call names into the engine's memory.
void place(const Case& c, const Inputs& inputs, Tensor* o, Tensor* lse, Placement* placement,
           fa3_forward_params* params);

}  // namespace fa3::test
