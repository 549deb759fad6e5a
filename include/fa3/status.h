// SPDX-License-Identifier: Apache-2.0

/// @file
/// Errors are values: a code that programs read and one sentence that people read.
#pragma once

#include <fa3/fa3.h>

#include <string>
#include <utility>

namespace fa3 {

/// fa3_status in C++.
enum class StatusCode {
  ok = FA3_OK,                              ///< done, or queued
  invalid_argument = FA3_INVALID_ARGUMENT,  ///< the call is wrong: the message says what to change
  unsupported = FA3_UNSUPPORTED,            ///< the call is right, but no engine does this here
  workspace_too_small = FA3_WORKSPACE_TOO_SMALL,  ///< ask for its size first: workspace_size()
  out_of_memory = FA3_OUT_OF_MEMORY,              ///< the operating system or the device had none
  device_error = FA3_DEVICE_ERROR,                ///< the GPU runtime reported an error
  internal_error = FA3_INTERNAL_ERROR,            ///< a defect of fa3: please report the message
};

/// How a call ended.
class [[nodiscard]] Status {
 public:
  /// Success.
  Status() = default;
  /// A code and its sentence.
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  /// Whether the code is StatusCode::ok.
  bool ok() const { return code_ == StatusCode::ok; }
  /// For programs.
  StatusCode code() const { return code_; }
  /// For people: argument, expected, got, what to do. Empty if ok().
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::ok;
  std::string message_;
};

}  // namespace fa3
