// SPDX-License-Identifier: Apache-2.0
// What the tests of score functions share: a cache folder of their own, and the rows that they
// compile.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <ranges>
#include <string>
#include <vector>

#include "engine/cuda/jit/nvrtc.h"
#include "engine/cuda/jit/score_program.h"
#include "engine/hopper/catalogue.h"
#include "engine/hopper/launch/score_program.h"
#include "engine/hopper/plan/forward_plan.h"

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

// Kernels that are compiled with a score function: of any function; three warpgroups for one that
// captures nothing, and for one that loads tiles; over the lists of a block mask; with dropout.
enum class Scored { kAny, kPure, kTiles, kListed, kDropped };

inline std::vector<hopper::Kernel> scored_kernels(
    Scored scored, hopper::Tiles tiles = hopper::Tiles::kDense,
    hopper::Element element = hopper::Element::kBf16) {
  using cuda::Need;
  std::vector<hopper::Kernel> kernels;
  for (const hopper::Row& row : hopper::kForward) {
    const cuda::Needs kinds = row.score_kinds;
    const Scored found = row.kernel.block_mask()        ? Scored::kListed
                         : row.kernel.dropout()         ? Scored::kDropped
                         : kinds.has(Need::kScoreOther) ? Scored::kAny
                         : kinds.has(Need::kScorePure)  ? Scored::kPure
                                                        : Scored::kTiles;
    if (!row.built && row.kernel.tiles == tiles && found == scored) {
      if (!kinds.has(Need::kScorePure) && kinds.has(Need::kScoreRun)) continue;  // as for kPure
      kernels.push_back(hopper::kernel_of(row, element));
    }
  }
  return kernels;
}

inline const hopper::Kernel kSmall = scored_kernels(Scored::kAny).front();

template <class Config>
int columns_of(const Config& config) {
  if constexpr (requires { config.shape; }) {
    return config.shape.head_dim;
  } else {
    return config.head_dim;
  }
}

inline fa3_score_function function_of(const char* text, fa3_score_kind kind = FA3_SCORE_ANY) {
  fa3_score_function score{};
  score.kind = kind;
  score.text = text;
  return score;
}

inline fa3_score_function function_of(const char* text, fa3_score_kind kind,
                                      const fa3_score_element& element) {
  fa3_score_function score = function_of(text, kind);
  score.element = element;
  return score;
}
// The element of a bias of all heads.
constexpr fa3_score_element kElementOfScore{
    .kind = FA3_ELEMENT_OF_SCORE, .type = "Bfloat", .indices = "return at(h);"};

// The program of a function's kernel. captured: the tensor of which it may load tiles.
inline cuda::Program program_of(const fa3_score_function& score, const hopper::Kernel& kernel,
                                int captured = hopper::kNoTile) {
  return hopper::score_program(score, hopper::with_score(kernel, score, captured));
}
inline cuda::Program program_of(const fa3_score_function& score,
                                const hopper::BackwardConfig& kernel,
                                int captured = hopper::kNoTile) {
  return hopper::score_program(score, kernel, captured);
}

// What the program's kernel knows of its function.
inline std::string traits_in(const cuda::Program& program) {
  return program.text.substr(0, program.text.find('\n'));
}
inline std::string line_of(const char* type, const cuda::ScoreTraits& traits) {
  return std::string("#define FA3_SCORE_FUNCTION ScoreOf<") + type + ">{" + cuda::text_of(traits) +
         "}";
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

// The kernels or table rows that are compiled, some seconds each: all, or the narrowest.
template <class Rows>
auto tried_rows(const Rows& rows) {
  using Row = std::ranges::range_value_t<Rows>;
  return std::vector<Row>(rows.begin(), is_quick() ? rows.begin() + 1 : rows.end());
}

}  // namespace fa3
