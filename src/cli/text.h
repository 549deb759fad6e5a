// SPDX-License-Identifier: Apache-2.0
//
// What people read on a terminal: units, tables, warnings, a progress bar. Tables go to stdout row
// by row, so that a long run shows what it has; the bar goes to stderr, and only if that is a
// terminal.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fa3::cli {

std::string bytes_text(int64_t bytes);     // "1.50 GiB"
std::string seconds_text(double seconds);  // "12.3 ms"
std::string flops_text(double flops);      // "455.1 GFLOP/s"
std::string error_text(double relative);   // "2.1e-07", "0" or "NaN"

// Sends on what stdout holds. Throws CommandError where it does not arrive (a full disk, a closed
// stream), so that no command ends well whose output is lost.
void flush_stdout();

// One line on stderr. Never throws: a result is not given up for a warning that nobody can read.
void warn(const std::string& sentence);

struct Column {
  std::string title;
  int width;           // at least; longer cells push the rest of their line
  bool number = true;  // right-aligned
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void print_header() const;
  void print_row(const std::vector<std::string>& cells) const;

 private:
  std::vector<Column> columns_;
};

class Progress {
 public:
  Progress(std::string title, int64_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // The next piece starts: `what` names it.
  void next(const std::string& what);
  // Takes the bar off the terminal, before other output.
  void erase() const;

 private:
  std::string title_;
  int64_t total_;
  int64_t started_ = 0;
  bool on_terminal_;
};

}  // namespace fa3::cli
