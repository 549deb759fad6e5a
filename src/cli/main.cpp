// SPDX-License-Identifier: Apache-2.0
//
// The `fa3` command. Next: command_line.cpp, which says what may be typed, and commands.h.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <new>

#include "cli/command_line.h"
#include "cli/exit_code.h"
#include "cli/text.h"

namespace {

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
