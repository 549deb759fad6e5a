// SPDX-License-Identifier: Apache-2.0
//
// Starts the command as a user does.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace fa3::cli {

struct Outcome {
  int code;
  std::string output;  // stdout, or stdout and stderr
};

// `environment`: "NAME=value " in front of the command.
inline Outcome start(const std::string& arguments, const std::string& redirect = "2>&1",
                     const std::string& environment = "") {
  const std::string line = environment + FA3_COMMAND + " " + arguments + " " + redirect;
  FILE* pipe = popen(line.c_str(), "r");
  EXPECT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.append(buffer, n);
  const int status = pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, output};
}

inline void expect_refused(const std::string& arguments, int code, const std::string& says,
                           const std::string& redirect = "2>&1") {
  const Outcome outcome = start(arguments, redirect);
  EXPECT_EQ(outcome.code, code) << arguments << "\n" << outcome.output;
  EXPECT_NE(outcome.output.find(says), std::string::npos) << arguments << "\n" << outcome.output;
}

// A directory of the test's own, gone after it.
class Folder {
 public:
  Folder() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            ("fa3_" + std::string(test->name()) + "_" + std::to_string(getpid()));
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace fa3::cli
