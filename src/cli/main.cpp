// SPDX-License-Identifier: Apache-2.0
//
// The `fa3` command: one file per subcommand (commands.h), everything through the public library.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>

#include "cli/commands.h"
#include "cli/exit_code.h"
#include "cli/machine.h"
#include "cli/text.h"

namespace {

constexpr const char* kFooter = R"(
Exit codes: 0 all is well; 1 a check failed or the work could not be finished;
            2 wrong arguments or files; 3 right, but not possible on this machine.

Start with:
  fa3 doctor                      does everything work here?
  fa3 demo                        attention of a real model, checked and timed
  fa3 run --q Q.npy --k K.npy --v V.npy --out O.npy
  fa3 <command> --help            options and examples)";

int fail(int code, const char* message) {
  std::fflush(stdout);
  fa3::cli::warn(message);
  return code;
}

// A caller may close a standard stream. A file opened later would then get its number, and what is
// printed would go into that file; so the numbers are taken. What is written there still fails.
void occupy_standard_streams() {
  int stream = 0;
  while (stream >= 0 && stream <= STDERR_FILENO) stream = open("/dev/null", O_RDONLY);
  if (stream > STDERR_FILENO) close(stream);
}

std::string version_text() {
  return "fa3 " + std::to_string(FA3_VERSION_MAJOR) + "." + std::to_string(FA3_VERSION_MINOR) +
         "." + std::to_string(FA3_VERSION_PATCH) + " (" + fa3::cli::commit() + ")";
}

int parse_and_run(int argc, char** argv) {
  using namespace fa3::cli;
  CLI::App app{"fa3: exact attention in O(N) memory", "fa3"};
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  app.footer(kFooter);
  add_run(app);
  add_verify(app);
  add_bench(app);
  add_info(app);
  add_doctor(app);
  add_demo(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) return kExitBadInput;  // --help is an "error" of code 0
  }
  flush_stdout();
  return kExitOk;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace fa3::cli;
  occupy_standard_streams();
  try {
    return parse_and_run(argc, argv);
  } catch (const CommandError& error) {
    return fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return fail(kExitFailed, "the system has no memory left; use a smaller shape");
  } catch (const std::exception& error) {
    return fail(kExitFailed, error.what());
  }
}
