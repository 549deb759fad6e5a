// SPDX-License-Identifier: Apache-2.0
//
// A test that hangs or dies says which call it was in.
#pragma once

#include <memory>
#include <string>

namespace fa3::test {

// While it lives, the process ends with a sentence if it takes longer than `seconds`, or dies of a
// signal: a GPU that hangs cannot be asked to stop.
class Deadline {
 public:
  Deadline(const std::string& what, int seconds);
  ~Deadline();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace fa3::test
