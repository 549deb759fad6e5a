// SPDX-License-Identifier: Apache-2.0
//
// What an engine does is asked of the library, never listed here: a case that it calls UNSUPPORTED
// is left out, with the library's own reason, which is counted. So a feature joins every suite by
// being built.
#pragma once

#include <string>

#include "support/cases/case.h"
#include "support/cases/inputs.h"
#include "support/engines.h"

namespace fa3::test {

enum class Pass { forward, backward };

// "" or the library's reason for not doing the case. Any other error of the question throws.
std::string refusal(const EngineUnderTest& engine, const Case& c, Pass pass);
// The refusal of a forward call whose inputs have a form of their own, such as a cache.
std::string refusal(const EngineUnderTest& engine, const Case& c, const Inputs& inputs);

// Counts a reason; those that differ in numbers alone count as one.
void leave_out(const std::string& reason);
void print_left_out();

}  // namespace fa3::test
