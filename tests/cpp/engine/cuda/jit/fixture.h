// SPDX-License-Identifier: Apache-2.0
// What the tests of score functions share: a cache folder of their own, and the rows that they
// compile.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/cuda/jit/nvrtc.h"
#include "engine/hopper/tables/score_table.h"

namespace fa3 {

class CacheFolder : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/fa3-cache-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    folder = std::string(name) + "/kernels";
    setenv("FA3_CACHE_DIR", folder.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("FA3_CACHE_DIR");
    std::filesystem::remove_all(std::filesystem::path(folder).parent_path());
  }
  int count() const {
    const std::filesystem::directory_iterator files(folder);
    return int(std::distance(begin(files), end(files)));
  }
  std::filesystem::path only_file() const {
    return std::filesystem::directory_iterator(folder)->path();
  }

  std::string folder;
};

using ScoreProgram = CacheFolder;

constexpr hopper::ForwardConfig kSmall = hopper::kScoreTable[0].config;

inline fa3_score_function function_of(const char* text) {
  fa3_score_function score{};
  score.text = text;
  return score;
}

// Whether there is a compiler; without one the tests of programs have nothing to test.
inline bool finds_nvrtc() {
  std::string code;
  const Status status = cuda::compile({.architecture = "sm_90a"}, nullptr, &code);
  return status.code() != StatusCode::unsupported;
}

#define FA3_SKIP_WITHOUT_NVRTC() \
  if (!finds_nvrtc()) GTEST_SKIP() << "libnvrtc is not found here; FA3_NVRTC is its path"

inline bool is_quick() {
  return std::getenv("FA3_TEST_QUICK") != nullptr;
}

// The rows of a table that are compiled, some seconds each: all, or the narrowest.
template <class Instance, size_t kRows>
std::vector<Instance> tried_rows(const std::array<Instance, kRows>& table) {
  if (is_quick()) return {table.front()};
  return {table.begin(), table.end()};
}

}  // namespace fa3
