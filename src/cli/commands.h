// SPDX-License-Identifier: Apache-2.0
//
// The subcommands. Each adds itself to the parser; its work runs when the parser meets its name and
// throws CommandError to end with anything but exit code 0.
#pragma once

namespace CLI {
class App;
}

namespace fa3::cli {

void add_run(CLI::App& app);
void add_verify(CLI::App& app);
void add_bench(CLI::App& app);
void add_info(CLI::App& app);
void add_doctor(CLI::App& app);
void add_demo(CLI::App& app);

}  // namespace fa3::cli
