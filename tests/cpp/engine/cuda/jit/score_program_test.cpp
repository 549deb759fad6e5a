// SPDX-License-Identifier: Apache-2.0
// Score functions become machine code without a GPU: by NVRTC, where it is found.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "engine/ampere/config/config_text.h"
#include "engine/ampere/kernels/backward.h"
#include "engine/ampere/kernels/forward.h"
#include "engine/ampere/launch/score_program.h"
#include "engine/cuda/jit/fixture.h"
#include "engine/cuda/jit/kernel_cache.h"
#include "engine/cuda/jit/score_program.h"
#include "engine/hopper/config/config_text.h"
#include "engine/hopper/launch/score_program.h"

namespace fa3 {
namespace {

namespace files = std::filesystem;

// Number n of a config and of the structs in it is another one.
template <class T>
void change_number(const T& value, int& n) {
  if constexpr (cuda::Config<T>) {
    std::apply([&](const auto&... field) { (change_number(field, n), ...); }, fields_of(value));
  } else if (n-- == 0) {
    const_cast<T&>(value) = T(!bool(value));
  }
}

template <class T>
void expect_that_every_field_tells(const T& plain) {
  const fa3_score_function score = function_of("return score;");
  const auto key = [&](const T& config) { return cuda::key_of("", config, score, {}).bytes(); };
  int numbers = 0;
  cuda::for_each_number(plain, [&](int64_t) { ++numbers; });
  for (int number = 0; number < numbers; ++number) {
    T other = plain;
    int n = number;
    change_number(other, n);
    EXPECT_NE(cuda::text_of(other), cuda::text_of(plain)) << number;
    EXPECT_NE(key(other), key(plain)) << number;
  }
}

TEST(ConfigText, tells_configs_apart_by_every_field) {
  expect_that_every_field_tells(hopper::Kernel{});
  expect_that_every_field_tells(hopper::BackwardConfig{});
  expect_that_every_field_tells(ampere::ForwardConfig{});
  expect_that_every_field_tells(ampere::BackwardConfig{});
  expect_that_every_field_tells(cuda::ScoreTraits{});
  EXPECT_EQ(cuda::text_of(ampere::ForwardConfig{}),
            "{Element(1), 0, 0, 0, 0, 2, 1, 0, false, false, false, "
            "{Gate(0), GateType(0), false}}");
}

TEST_F(ScoreProgram, CompilesInEveryConfiguration) {
  FA3_SKIP_WITHOUT_NVRTC();
  auto score = function_of("return score + load<Bfloat, 0>(h, q_idx) * (kv_idx - q_idx);");
  for (const auto tiles : {hopper::Tiles::kDense, hopper::Tiles::kVarlen}) {
    for (const auto& config :
         tried_rows(scored_kernels(Scored::kAny, tiles, hopper::Element::kFp16))) {
      std::string code;
      score.may_hide = tiles == hopper::Tiles::kVarlen;
      const Status status = cuda::find_code(program_of(score, config), nullptr, &code);
      EXPECT_TRUE(status.ok()) << columns_of(config) << ": " << status.message();
      EXPECT_EQ(code.substr(1, 3), "ELF");
    }
    if (is_quick()) break;
  }
}

TEST_F(ScoreProgram, CompilesForThreeWarpgroups) {
  FA3_SKIP_WITHOUT_NVRTC();
  const auto score = function_of("using namespace score; return tangent(score) * 3.0f;");
  for (const auto& config : tried_rows(scored_kernels(Scored::kPure, hopper::Tiles::kVarlen))) {
    std::string code;
    const Status status = cuda::find_code(program_of(score, config), nullptr, &code);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST_F(ScoreProgram, CompilesBackwardsInEveryConfiguration) {
  FA3_SKIP_WITHOUT_NVRTC();
  auto score = function_of("return score + load<Bfloat, 0>(h, q_idx) + load<float, 1>(b, kv_idx);");
  score.gradients =
      "add<0>(gradient, h, q_idx); add_for_key<1>(gradient, b, kv_idx); "
      "add_for_tile<2>(gradient * (kv_idx - q_idx), h);";
  const auto compiles = [&](const hopper::BackwardConfig& config) {
    std::string code;
    const Status status = cuda::find_code(program_of(score, config), nullptr, &code);
    EXPECT_TRUE(status.ok()) << columns_of(config) << ": " << status.message();
    EXPECT_EQ(code.substr(1, 3), "ELF");
  };
  for (const hopper::BackwardRow& row : tried_rows(hopper::kBackwardTiles)) {
    const auto config = row.kernel.with(hopper::Element::kFp16, hopper::Variant::kDense);
    compiles(config);
    if (is_quick() || row.kernel.shape.head_dim != 128) continue;  // minutes otherwise
    compiles(config.deterministic());
    compiles(config.with_step_splits());
    compiles(row.kernel.with(hopper::Element::kBf16, hopper::Variant::kGeneral));
  }
  score.slope = "return 0.5f * score;";
  for (const hopper::BackwardRow& row : tried_rows(hopper::kBackwardTiles)) {
    if (row.kernel.splits_dkv()) score.gradients = nullptr;
    compiles(row.kernel.with(hopper::Element::kBf16, hopper::Variant::kCapped));
  }
}

TEST_F(ScoreProgram, KeepsScoresThatGradientsUse) {
  FA3_SKIP_WITHOUT_NVRTC();
  auto score = function_of("return score * load<float, 0>(h) + load<Bfloat, 1>(q_idx);");
  const auto config = hopper::kBackwardTiles[0].kernel.with(hopper::Element::kBf16,  //
                                                            hopper::Variant::kCapped);
  const auto keeps = [&](const char* gradients, int use_score) {
    score.gradients = gradients;
    score.gradients_use_score = use_score;
    const cuda::ScoreTraits expected{.keeps_scores = gradients != nullptr && use_score != 0};
    EXPECT_EQ(traits_in(program_of(score, config)), line_of("float", expected));
    return expected.keeps_scores;
  };
  EXPECT_FALSE(keeps(nullptr, 1));
  EXPECT_FALSE(keeps("add<1>(gradient, q_idx);", 0));
  EXPECT_TRUE(keeps("add_for_tile<0>(gradient * score, h);", 1));
  // A text that does not say so has no score to name.
  std::string code;
  EXPECT_FALSE(keeps("add_for_tile<0>(gradient * score, h);", 0));
  const Status unknown = cuda::find_code(program_of(score, config), nullptr, &code);
  EXPECT_NE(unknown.message().find("score gradients(1): error"), std::string::npos)
      << unknown.message();

  score.gradients_use_score = 1;
  score.gradients = "add_for_tile<0>(gradient * score, h); add<1>(gradient, q_idx);";
  score.slope = "return load<float, 0>(h);";
  const auto compiles = [&](const auto& kept) {
    std::string code;
    const Status status = cuda::find_code(program_of(score, kept), nullptr, &code);
    EXPECT_TRUE(status.ok()) << columns_of(kept) << ": " << status.message();
  };
  for (const hopper::BackwardRow& row : hopper::kBackwardTiles) {
    if (row.kernel.splits_dkv()) continue;
    compiles(row.kernel.with(hopper::Element::kBf16, hopper::Variant::kCapped));
    if (is_quick()) break;
  }
  compiles(hopper::kListedBackwardTiles[0].kernel.with(hopper::Element::kFp16,  //
                                                       hopper::Variant::kCapped));
}

TEST_F(ScoreProgram, CompilesBesideBlockMasks) {
  FA3_SKIP_WITHOUT_NVRTC();
  auto score = function_of("return score + load<Bfloat, 0>(h, q_idx) * (kv_idx - q_idx);");
  std::string code;
  const auto compiles = [&](const auto& config) {
    const Status status = cuda::find_code(program_of(score, config), nullptr, &code);
    EXPECT_TRUE(status.ok()) << columns_of(config) << ": " << status.message();
  };
  for (const auto& kernel : tried_rows(scored_kernels(Scored::kListed, hopper::Tiles::kListed)))
    compiles(kernel);
  if (!is_quick()) compiles(scored_kernels(Scored::kListed, hopper::Tiles::kListedVarlen).front());
  score.gradients = "add<0>(gradient, h, q_idx);";
  for (const hopper::BackwardRow& row : tried_rows(hopper::kListedBackwardTiles)) {
    const auto config = row.kernel.with(hopper::Element::kBf16, hopper::Variant::kDense);
    compiles(config);
    if (!is_quick()) compiles(config.deterministic());
  }
  compiles(hopper::kListedBackwardTiles[0].kernel.with(hopper::Element::kBf16,  //
                                                       hopper::Variant::kGeneral));
  score.slope = "return 0.5f * score;";
  for (const hopper::BackwardRow& row : tried_rows(hopper::kListedBackwardTiles)) {
    const auto config = row.kernel.with(hopper::Element::kBf16, hopper::Variant::kCapped);
    EXPECT_TRUE(config.keeps_p() && config.shape.helpers && !config.general());
    compiles(config);
    if (!is_quick()) compiles(config.deterministic());
  }
}

TEST_F(ScoreProgram, CompilesInDecodeKernels) {
  FA3_SKIP_WITHOUT_NVRTC();
  fa3_captured_tensor keys{};
  auto score =
      function_of("return score + x * q_idx + b;", FA3_SCORE_ANY,
                  {.kind = FA3_ELEMENT_OF_KEY, .type = "Bfloat", .indices = "return at(h);"});
  score.tensors = &keys;
  score.num_tensors = 1;
  for (const auto tiles : {hopper::Tiles::kDecodeSingle, hopper::Tiles::kDecode}) {
    for (const auto& config : tried_rows(scored_kernels(Scored::kAny, tiles))) {
      std::string code;
      const Status status = cuda::find_code(program_of(score, config), nullptr, &code);
      EXPECT_TRUE(status.ok()) << columns_of(config) << ": " << status.message();
      EXPECT_EQ(code.substr(1, 3), "ELF");
    }
  }
  score = function_of("using namespace score; return tangent(score);");
  std::string code;
  const auto config =
      scored_kernels(Scored::kAny, hopper::Tiles::kDecode, hopper::Element::kFp16).front();
  const Status status = cuda::find_code(program_of(score, config), nullptr, &code);
  EXPECT_TRUE(status.ok()) << status.message();
}

const size_t kQuantizedRow =
    size_t(std::ranges::find_if(ampere::kForward,
                                [](const ampere::Row& row) { return row.kernel.quantized; }) -
           ampere::kForward.begin());

// For an A100, and for cards of 99 KB; NVRTC is asked for no more than one program a row.
TEST_F(ScoreProgram, CompilesOnTheAmpereEngineInEveryConfiguration) {
  FA3_SKIP_WITHOUT_NVRTC();
  auto score = function_of("return score + load<Bfloat, 0>(h, q_idx) * (kv_idx - q_idx);");
  const auto compiles = [&](const auto& config, const cuda::Capability& gpu) {
    std::string code;
    const Status status =
        cuda::find_code(ampere::score_program(score, config, gpu), nullptr, &code);
    EXPECT_TRUE(status.ok()) << columns_of(config) << ": " << status.message();
    EXPECT_EQ(code.substr(1, 3), "ELF");
  };
  for (const ampere::Row& row : ampere::kForward) {
    const ampere::ForwardConfig& c = row.kernel;
    if (c.dropout) continue;
    compiles(c.with(ampere::Element::kBf16).with_score_function(), {8, 0});
    if (is_quick()) break;
  }
  compiles(ampere::kForward[kQuantizedRow].kernel.with_score_function(), {8, 0});
  score.gradients = "add<0>(gradient, h, q_idx); add_for_tile<2>(gradient, h);";
  score.slope = "return 2.0f;";
  const ampere::BackwardConfig* before = nullptr;
  for (const ampere::BackwardRow& row : ampere::kBackward) {
    if (!row.kernel.scored) continue;
    const bool masked = row.kernel.block_mask;
    if (is_quick() && before && before->block_mask == masked) continue;
    compiles(kernel_of(row, ampere::Element::kFp16).with_score_function(true), {8, masked ? 0 : 9});
    before = &row.kernel;
  }
}

TEST_F(ScoreProgram, IsCompiledOnce) {
  FA3_SKIP_WITHOUT_NVRTC();
  files::remove_all(folder);
  const auto score = function_of("return score * 2.0f;");
  std::string first, second, third;
  ASSERT_TRUE(cuda::find_code(program_of(score, kSmall), nullptr, &first).ok());
  EXPECT_EQ(count(), 1);
  const auto time = files::last_write_time(only_file());
  ASSERT_TRUE(cuda::find_code(program_of(score, kSmall), nullptr, &second).ok());
  EXPECT_EQ(files::last_write_time(only_file()), time);
  EXPECT_EQ(first, second);
  files::resize_file(only_file(), 100);
  ASSERT_TRUE(cuda::find_code(program_of(score, kSmall), nullptr, &third).ok());
  EXPECT_GT(files::file_size(only_file()), 1000u);
  const auto other = function_of("return score * 3.0f;");
  ASSERT_TRUE(cuda::find_code(program_of(other, kSmall), nullptr, &third).ok());
  EXPECT_EQ(count(), 2);
}

TEST_F(ScoreProgram, SaysWhatTheCompilerSays) {
  FA3_SKIP_WITHOUT_NVRTC();
  std::string code;
  const auto score = function_of("return score +\n  undeclared;");
  const Status status = cuda::find_code(program_of(score, kSmall), nullptr, &code);
  EXPECT_EQ(status.code(), StatusCode::invalid_argument);
  EXPECT_NE(status.message().find("score function(2): error"), std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("undeclared"), std::string::npos);
}

}  // namespace
}  // namespace fa3
