// SPDX-License-Identifier: Apache-2.0
//
// What the process returns, and the one exception that carries it from a command to main().
#pragma once

#include <fa3/status.h>

#include <stdexcept>
#include <string>

namespace fa3::cli {

enum ExitCode {
  kExitOk = 0,
  kExitFailed = 1,       // a check failed, or the work could not be finished
  kExitBadInput = 2,     // wrong arguments or files
  kExitUnsupported = 3,  // right, but not on this machine
};

class CommandError : public std::runtime_error {
 public:
  CommandError(ExitCode code, const std::string& message)
      : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

// Throws unless `status` is ok; `subject` (a file, a call) opens the sentence.
inline void require(const Status& status, const std::string& subject = "") {
  if (status.ok()) return;
  const ExitCode code = status.code() == StatusCode::invalid_argument ? kExitBadInput
                        : status.code() == StatusCode::unsupported    ? kExitUnsupported
                        : status.code() == StatusCode::out_of_memory  ? kExitUnsupported
                                                                      : kExitFailed;
  throw CommandError(code, subject.empty() ? status.message() : subject + ": " + status.message());
}

}  // namespace fa3::cli
