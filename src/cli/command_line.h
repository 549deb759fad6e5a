// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace fa3::cli {

// Parses the command line and does what it says. Returns the exit code, or throws CommandError.
int parse_and_run(int argc, char** argv);

}  // namespace fa3::cli
