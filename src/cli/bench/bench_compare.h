// SPDX-License-Identifier: Apache-2.0
//
// fa3 bench --compare: which cases of an older run became slower, beyond what rounds differ by.
#pragma once

#include <string>

namespace fa3::cli {

// Both files hold JSON lines of fa3 bench or benchmarks/rivals.py. Prints a table; throws
// CommandError with kExitFailed where a case became slower.
void compare_runs(const std::string& before, const std::string& after);

}  // namespace fa3::cli
