// SPDX-License-Identifier: Apache-2.0
#include "cli/text.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cli/exit_code.h"

namespace fa3::cli {

std::string bytes_text(int64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.1f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.2f} ms", seconds * 1e3);
  return fmt::format("{:.2f} s", seconds);
}

std::string flops_text(double flops) {
  if (flops >= 1e12) return fmt::format("{:.2f} TFLOP/s", flops * 1e-12);
  return fmt::format("{:.1f} GFLOP/s", flops * 1e-9);
}

std::string error_text(double relative) {
  if (std::isnan(relative)) return "NaN";
  if (relative == 0) return "0";
  return fmt::format("{:.1e}", relative);
}

void flush_stdout() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  throw CommandError(kExitFailed, "writing to stdout failed; is there room on the disk?");
}

void warn(const std::string& sentence) {
  std::fputs(("fa3: " + sentence + "\n").c_str(), stderr);
}

void Table::print_header() const {
  std::vector<std::string> titles;
  for (const Column& column : columns_) titles.push_back(column.title);
  print_row(titles);
}

void Table::print_row(const std::vector<std::string>& cells) const {
  std::string line;
  for (size_t i = 0; i < columns_.size() && i < cells.size(); ++i) {
    const Column& column = columns_[i];
    if (i > 0) line += "  ";
    line += column.number ? fmt::format("{:>{}}", cells[i], column.width)
                          : fmt::format("{:<{}}", cells[i], column.width);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  std::puts(line.c_str());
  flush_stdout();
}

Progress::Progress(std::string title, int64_t total)
    : title_(std::move(title)), total_(total), on_terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  erase();
}

void Progress::next(const std::string& what) {
  ++started_;
  if (!on_terminal_) return;
  constexpr int64_t kWidth = 24;
  const int64_t filled = kWidth * (started_ - 1) / std::max<int64_t>(total_, 1);
  fmt::print(stderr, "\r\x1b[K{} [{:#<{}}{:.<{}}] {}/{} {}", title_, "", filled, "",
             kWidth - filled, started_, total_, what);
  std::fflush(stderr);
}

void Progress::erase() const {
  if (on_terminal_) std::fputs("\r\x1b[K", stderr);
}

}  // namespace fa3::cli
