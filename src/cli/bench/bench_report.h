// SPDX-License-Identifier: Apache-2.0
//
// What `fa3 bench` found out about a case, and its JSON lines.
#pragma once

#include <fstream>
#include <string>
#include <vector>

#include "cli/bench/bench_cases.h"
#include "cli/bench/timing.h"

namespace fa3::cli {

// A core's clock follows its load and its neighbours within milliseconds, so the peak is sampled
// before every call and after the last, and its median stands beside the calls' median.
class Peaks {
 public:
  void sample(const BenchCase& bench);
  double lowest() const { return at(0); }
  double median() const { return at(samples_.size() / 2); }
  double highest() const { return at(samples_.size() - 1); }
  bool disturbed() const;

 private:
  double at(size_t index) const { return samples_.empty() ? 0 : samples_[index]; }

  std::vector<double> samples_;
};

struct Measured {
  std::string engine, kernel;  // as the plan names them
  std::string variant = "default";
  bool on_gpu = false;
  std::string machine;
  std::string layout = "bshd";
  Timing timing;
  size_t workspace_bytes = 0;
  double flops = 0;  // per second, as all peaks
  Peaks peaks;       // none of a GPU, which this command cannot measure
};

// One object a line, appended to a file, or on stdout for "-"; nowhere for "".
class JsonLines {
 public:
  explicit JsonLines(const std::string& where);
  bool on_stdout() const { return on_stdout_; }
  // Throws where the line does not arrive: a row that is lost must not look measured.
  void add(const BenchCase& bench, const Measured& measured);

 private:
  std::string where_;
  bool on_stdout_;
  std::ofstream file_;
};

}  // namespace fa3::cli
