// SPDX-License-Identifier: Apache-2.0
//
// Errors are values: a code that programs read and one sentence that people read.
#pragma once

#include <fa3/fa3.h>

#include <string>
#include <utility>

namespace fa3 {

enum class StatusCode {
  ok = FA3_OK,
  invalid_argument = FA3_INVALID_ARGUMENT,
  unsupported = FA3_UNSUPPORTED,
  workspace_too_small = FA3_WORKSPACE_TOO_SMALL,
  out_of_memory = FA3_OUT_OF_MEMORY,
  device_error = FA3_DEVICE_ERROR,
  internal_error = FA3_INTERNAL_ERROR,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::ok; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

}  // namespace fa3
