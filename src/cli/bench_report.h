// SPDX-License-Identifier: Apache-2.0
//
// What `fa3 bench` found out about a case, and its JSON lines.
#pragma once

#include <fstream>
#include <string>

#include "cli/bench_cases.h"
#include "cli/timing.h"

namespace fa3::cli {

struct Measured {
  std::string engine, kernel;  // as the plan names them
  std::string variant = "default";
  bool on_gpu = false;
  std::string machine;
  Timing timing;
  size_t workspace_bytes = 0;
  double flops = 0;                        // per second, as all peaks
  double peak_before = 0, peak_after = 0;  // 0 on a GPU, whose peak this command cannot measure

  // The higher one: what the cores could have done.
  double peak() const { return peak_before > peak_after ? peak_before : peak_after; }
  bool disturbed() const;
};

// One object a line, appended to a file, or on stdout for "-"; nowhere for "".
class JsonLines {
 public:
  explicit JsonLines(const std::string& where);
  bool on_stdout() const { return on_stdout_; }
  void add(const BenchCase& bench, const Measured& measured);

 private:
  bool on_stdout_;
  std::ofstream file_;
};

}  // namespace fa3::cli
