// SPDX-License-Identifier: Apache-2.0
//
// What `fa3 verify` tries: cases as data, in groups that each name one feature.
#pragma once

#include <string>
#include <vector>

#include "cli/call/operands.h"

namespace fa3::cli {

struct VerifyCase {
  std::string group;
  Shape shape;
  fa3_options options;
  Layout layout = Layout::bshd;
  bool sink = false;
  bool backward = true;
};

// "b1 h8/2 s128x200 d64 causal window 3,0"
std::string case_text(const VerifyCase& verify_case);

enum class Depth { quick, normal, full };
std::vector<VerifyCase> verify_cases(Depth depth);

}  // namespace fa3::cli
