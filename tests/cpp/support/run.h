// SPDX-License-Identifier: Apache-2.0
//
// Runs a case on an engine through the C ABI: poisoned outputs, a poisoned workspace of exactly the
// size asked for, and a look at every byte around them afterwards.
#pragma once

#include <fa3/fa3.h>

#include <cstddef>
#include <string>
#include <vector>

#include "support/case.h"
#include "support/engines.h"
#include "support/inputs.h"
#include "support/tensor.h"

namespace fa3::test {

struct ForwardRun {
  Tensor o, lse;
  std::string problem;  // "" or what went wrong: a status, an unwritten output, a damaged guard
};

struct BackwardRun {
  Tensor dq, dk, dv, dsink;
  std::string problem;
};

ForwardRun run_forward(const EngineUnderTest& engine, const Case& c, const Inputs& inputs);

// `forward` gives o and lse. Its rows that no sequence uses are overwritten with NaN first.
BackwardRun run_backward(const EngineUnderTest& engine, const Case& c, const Inputs& inputs,
                         const ForwardRun& forward, bool deterministic = true);

// The params of those calls, for tests that change them first.
fa3_options make_options(fa3_engine_id engine, const Case& c, const Inputs& inputs);
fa3_forward_params forward_params(fa3_engine_id engine, const Case& c, const Inputs& inputs,
                                  const Tensor& o, const Tensor& lse);

// Exactly `bytes` bytes, aligned to 256, full of NaN, with guards on both sides.
class GuardedWorkspace {
 public:
  explicit GuardedWorkspace(size_t bytes);
  void* data();
  bool guards_intact() const;

 private:
  size_t bytes_, first_;
  std::vector<std::byte> memory_;
};

}  // namespace fa3::test
