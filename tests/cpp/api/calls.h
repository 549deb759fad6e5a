// SPDX-License-Identifier: Apache-2.0
//
// Valid calls to break: a test changes one thing and looks at what the library says and touches.
#pragma once

#include <fa3/fa3.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "support/cases/case.h"
#include "support/cases/inputs.h"
#include "support/cases/tensor.h"
#include "support/runs/run.h"

namespace fa3::test {

// What is wrong with a call, and what the library must say: the sentence begins with the argument's
// name and holds all the words.
template <class Params>
struct BadInput {
  const char* name;
  std::function<void(Params*)> change;
  const char* argument;
  std::vector<std::string> words;
  fa3_status status = FA3_INVALID_ARGUMENT;
};

// A forward call on float16 data with an LSE and a sink: batch 2, 6 queries, 10 keys, 4/2 heads,
// head dim 8, value dim 16. `packed` uses cu_seqlens for both sides.
struct ForwardCall {
  Case c;
  Inputs inputs;
  Tensor o, lse;
  GuardedWorkspace workspace;
  fa3_forward_params params;

  explicit ForwardCall(bool packed = false);
  fa3_status run() { return fa3_forward(&params, workspace.data(), kWorkspaceBytes, nullptr); }
  bool outputs_untouched() const { return o.untouched() && lse.untouched(); }

  static constexpr size_t kWorkspaceBytes = 1 << 20;
};

struct BackwardCall {
  ForwardCall forward;  // holds the inputs; its o and lse are inputs here
  Tensor dq, dk, dv, dsink;
  fa3_backward_params params;

  explicit BackwardCall(bool packed = false);
  fa3_status run() {
    return fa3_backward(&params, forward.workspace.data(), ForwardCall::kWorkspaceBytes, nullptr);
  }
  bool outputs_untouched() const {
    return dq.untouched() && dk.untouched() && dv.untouched() && dsink.untouched();
  }
};

// The last error names the argument and holds the words.
testing::AssertionResult last_error_says(const std::string& argument,
                                         const std::vector<std::string>& words);

template <class T>
std::string name_of_bad_input(const testing::TestParamInfo<BadInput<T>>& info) {
  return info.param.name;
}

template <class T>
void PrintTo(const BadInput<T>& bad, std::ostream* out) {
  *out << bad.name;
}

}  // namespace fa3::test
