// SPDX-License-Identifier: Apache-2.0
// Functions that load by keys or by scores become machine code without a GPU, by NVRTC.
#include <gtest/gtest.h>

#include "engine/cuda/jit/fixture.h"
#include "engine/cuda/jit/kernel_cache.h"
#include "engine/hopper/config/config_text.h"
#include "engine/hopper/host/captured_tile.h"
#include "engine/hopper/launch/score_program.h"
#include "engine/hopper/tables/backward_table.h"
#include "engine/hopper/tables/mask_backward_table.h"

namespace fa3 {
namespace {

TEST_F(ScoreProgram, LoadsAheadFromTheOnlyTensorOfKeys) {
  FA3_SKIP_WITHOUT_NVRTC();
  constexpr char kOnce[] =
      "return score * load<float, 0>(h) + load_of_key<Half, 3>(kv_idx, q_idx);";
  constexpr char kTwice[] =
      "return score + load_of_key<Half, 1>(kv_idx, h) + load_of_key<Half, 2>(kv_idx, q_idx);";
  const auto c =
      scored_kernels(Scored::kAny, hopper::Tiles::kVarlen, hopper::Element::kFp16).front();
  const auto once = hopper::score_program(function_of(kOnce), c);
  const auto twice = hopper::score_program(function_of(kTwice), c);
  EXPECT_NE(once.text.find("#define FA3_SCORE_PAIRS 3\n"), std::string::npos);
  EXPECT_EQ(twice.text.find("FA3_SCORE_PAIRS"), std::string::npos);
  auto hides = function_of(kOnce);
  hides.may_hide = 1;
  const auto with_pairs = [&](bool may_hide) {
    hopper::Kernel kernel = c;
    kernel.captured = {hopper::Ahead::kPairs, may_hide};
    return cuda::text_of(kernel);
  };
  EXPECT_NE(once.text.find(with_pairs(false)), std::string::npos);
  EXPECT_NE(hopper::score_program(hides, c).text.find(with_pairs(true)), std::string::npos);
  std::string code;
  for (const auto* program : {&once, &twice}) {
    const Status status = cuda::find_code(*program, nullptr, &code);
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

// Of a tensor with an element for each score; which kernels do stands here.
TEST_F(ScoreProgram, LoadsTilesWhereSharedMemoryLasts) {
  FA3_SKIP_WITHOUT_NVRTC();
  auto score = function_of("return score + load_of_score<Bfloat, 0>(q_idx, kv_idx, h);");
  score.may_hide = 1;
  const auto compiles = [&](const auto& config) {
    const cuda::Program program = hopper::score_program(score, config, 0);
    EXPECT_NE(program.text.find("#define FA3_SCORE_TILE 0\n"), std::string::npos);
    std::string code;
    const Status status = cuda::find_code(program, nullptr, &code);
    EXPECT_TRUE(status.ok()) << columns_of(config) << ": " << status.message();
  };
  const auto dense = [](const auto& row) {
    return row.config.with(hopper::Element::kBf16, hopper::Variant::kDense);
  };
  const auto general = [](const auto& row, hopper::Element element) {
    return row.config.with(element, hopper::Variant::kGeneral);
  };
  for (const auto& kernel : scored_kernels(Scored::kAny)) {
    EXPECT_EQ(hopper::takes_captured_tile(kernel), kernel.shape.block_n != 80)
        << kernel.shape.head_dim;
  }
  for (const auto& kernel : scored_kernels(Scored::kListed, hopper::Tiles::kListed)) {
    EXPECT_EQ(hopper::takes_captured_tile(kernel), kernel.shape.head_dim == 64);
  }
  for (const hopper::BackwardInstance& row : hopper::kBackwardTable) {
    EXPECT_EQ(hopper::takes_captured_tile(dense(row)), row.config.head_dim <= 128);
  }
  const auto compiles_if_tiles = [&](const auto& kernels) {
    for (const auto& kernel : tried_rows(kernels)) {
      if (hopper::takes_captured_tile(kernel)) compiles(kernel);
    }
  };
  constexpr auto kGeneral = hopper::Tiles::kVarlen;
  compiles_if_tiles(scored_kernels(Scored::kAny));
  if (!is_quick()) {
    compiles_if_tiles(scored_kernels(Scored::kAny, kGeneral, hopper::Element::kFp16));
  }
  for (const auto& kernel : scored_kernels(Scored::kTiles, kGeneral)) {
    EXPECT_TRUE(hopper::takes_captured_tile(kernel));
    compiles(kernel);
  }
  compiles_if_tiles(scored_kernels(Scored::kListed, hopper::Tiles::kListed));
  for (const hopper::BackwardInstance& row : hopper::kBackwardTable) {
    if (row.config.head_dim != 128 && (is_quick() || row.config.head_dim > 128)) continue;
    compiles(dense(row));
    if (is_quick()) continue;
    compiles(dense(row).deterministic());
    compiles(general(row, hopper::Element::kFp16));
  }
  compiles(dense(hopper::kMaskBackwardTable.front()));
  if (!is_quick()) compiles(dense(hopper::kMaskBackwardTable.back()));
  score.slope = "return 0.5f * score;";
  compiles(hopper::kBackwardTable[0].config.with(hopper::Element::kBf16, hopper::Variant::kCapped));
}

TEST_F(ScoreProgram, BeginsWithWhatTheFunctionAdds) {
  FA3_SKIP_WITHOUT_NVRTC();
  constexpr char kText[] =
      "using namespace score;\nconst float x = load_of_score<Bfloat, 0>(q_idx, kv_idx, h);\n"
      "return score + x;\n";
  auto score = function_of(kText);
  constexpr char kAdds[] = "#define FA3_SCORE_ADDS\n", kOnce[] = "#define FA3_SCORE_TILE_ONCE\n";
  fa3_captured_tensor bias{.rank = 3, .shape = {4, 100, 200}, .stride = {20800, 208, 1}};
  score.tensors = &bias;
  score.num_tensors = 1;
  const auto has = [&](const char* line) {
    const auto program = hopper::score_program(score, kSmall, 0);
    return program.text.find(line) != std::string::npos;
  };
  EXPECT_TRUE(has(kAdds) && has(kOnce));
  const auto compiles = [&](const hopper::Kernel& config) {
    std::string code;
    const Status status = cuda::find_code(hopper::score_program(score, config, 0), nullptr, &code);
    EXPECT_TRUE(status.ok()) << columns_of(config) << ": " << status.message();
  };
  constexpr auto kDense = hopper::Tiles::kDense, kGeneral = hopper::Tiles::kVarlen;
  constexpr auto kFp16 = hopper::Element::kFp16;
  compiles(scored_kernels(Scored::kTiles, kGeneral, kFp16).front());
  if (!is_quick()) {
    compiles(scored_kernels(Scored::kAny, kDense, kFp16)[0]);
    compiles(scored_kernels(Scored::kAny, kDense, kFp16)[1]);
    score.may_hide = 1;
    compiles(scored_kernels(Scored::kListed, hopper::Tiles::kListed, kFp16).front());
  }
  bias.stride[0] = 0;  // heads share it
  EXPECT_TRUE(has(kAdds) && !has(kOnce));
  bias = {.rank = 2, .shape = {100, 200}, .stride = {208, 1}};
  EXPECT_FALSE(has(kOnce));
  // Without tiles there is nothing to begin with.
  const auto without = hopper::score_program(score, kSmall);
  EXPECT_EQ(without.text.find(kAdds), std::string::npos);
}

TEST_F(ScoreProgram, BeginsWithLinesAndRuns) {
  FA3_SKIP_WITHOUT_NVRTC();
  constexpr char kLine[] =
      "const float x = load<float, 0>(h);\nconst float y = x * (kv_idx - q_idx);\n"
      "return score + linear(y, x);\n";
  constexpr char kTwoLines[] =
      "const float x = kv_idx < q_idx ? 1.0f : -1.0f;\nconst float y = x * (kv_idx - q_idx);\n"
      "return score + piecewise_linear(y, x);\n";
  constexpr char kRun[] =
      "const float x = load_run<Half, 0, -1>(q_idx - kv_idx, h);\nreturn score + x;\n";
  constexpr char kClampedRun[] =
      "const float x = load_clamped_run<float, 0, 1>(score::minimum(kv_idx, 99), h);\n"
      "return score + x;\n";
  constexpr char kKeyTerm[] =
      "const float x = load<float, 0>(h, kv_idx);\nreturn score + key_term(x);\n";
  // What a kernel is told, which compiles.
  const auto told = [](const char* text, const hopper::Kernel& kernel, bool compiles = true) {
    const auto program = hopper::score_program(function_of(text), kernel);
    std::string code, found;
    const Status status = compiles ? cuda::find_code(program, nullptr, &code) : Status{};
    EXPECT_TRUE(status.ok()) << kernel.shape.head_dim << ": " << status.message();
    for (const char* name :
         {"ADDS", "LINEAR", "PIECEWISE_LINEAR", "RUN", "CLAMPED_RUN", "KEY_TERM"}) {
      const std::string line = std::string("#define FA3_SCORE_") + name + "\n";
      if (program.text.find(line) != std::string::npos) found += std::string(name) + " ";
    }
    return found;
  };
  constexpr auto kGeneral = hopper::Tiles::kVarlen;
  for (const auto& kernel : tried_rows(scored_kernels(Scored::kPure))) {
    EXPECT_EQ(told(kLine, kernel), "ADDS LINEAR ");
    EXPECT_EQ(told(kRun, kernel), "ADDS RUN ");
    EXPECT_EQ(told(kClampedRun, kernel), "ADDS CLAMPED_RUN ");
  }
  for (const auto& kernel : tried_rows(scored_kernels(Scored::kPure, kGeneral))) {
    EXPECT_EQ(told(kTwoLines, kernel), "ADDS PIECEWISE_LINEAR ");
    EXPECT_EQ(told(kKeyTerm, kernel), "ADDS KEY_TERM ");
    if (is_quick()) continue;
    EXPECT_EQ(told(kLine, kernel), "ADDS LINEAR ");
    EXPECT_EQ(told(kRun, kernel), "ADDS RUN ");
  }
  for (const auto& kernel : tried_rows(scored_kernels(Scored::kListed, hopper::Tiles::kListed))) {
    EXPECT_EQ(told(kLine, kernel), "ADDS LINEAR ");
    EXPECT_EQ(told(kKeyTerm, kernel), "ADDS KEY_TERM ");
  }
  if (!is_quick()) {
    for (const auto& kernel : scored_kernels(Scored::kListed, hopper::Tiles::kListedVarlen)) {
      EXPECT_EQ(told(kRun, kernel), "ADDS RUN ");
    }
  }
  // At 256 columns lines and terms of keys take a stage of keys and values from the pipeline.
  const auto compiled = [](const auto& kernel) {
    return !is_quick() || kernel.shape.head_dim == 256;
  };
  for (const auto& kernel : scored_kernels(Scored::kAny, kGeneral)) {
    EXPECT_EQ(told(kTwoLines, kernel, compiled(kernel)), "ADDS PIECEWISE_LINEAR ");
    if (!is_quick()) EXPECT_EQ(told(kLine, kernel), "ADDS LINEAR ");
  }
  for (const auto& kernel : scored_kernels(Scored::kAny)) {
    EXPECT_EQ(told(kKeyTerm, kernel, compiled(kernel)), "ADDS KEY_TERM ");
  }
}

TEST_F(ScoreProgram, StoresTheGradientOfScores) {
  FA3_SKIP_WITHOUT_NVRTC();
  fa3_captured_tensor bias{};
  auto score = function_of("return score + load_of_score<Bfloat, 0>(q_idx, kv_idx, h);");
  score.gradients = "";
  score.tensors = &bias;
  score.num_tensors = 1;
  constexpr char kStores[] = "#define FA3_SCORE_STORES\n";
  for (const auto* row :
       {&hopper::kBackwardTable[0], &hopper::kBackwardTable[2], &hopper::kMaskBackwardTable[0]}) {
    const auto config = row->config.with(hopper::Element::kBf16, hopper::Variant::kDense);
    bias.stores_gradient = 1;
    bias.gradient = nullptr;
    EXPECT_EQ(hopper::score_program(score, config, 0).text.find(kStores), std::string::npos);
    float gradient = 0;
    bias.gradient = &gradient;
    const cuda::Program program = hopper::score_program(score, config, 0);
    EXPECT_NE(program.text.find(kStores), std::string::npos);
    std::string code;
    const Status status = cuda::find_code(program, nullptr, &code);
    EXPECT_TRUE(status.ok()) << columns_of(config) << ": " << status.message();
    bias.stores_gradient = 0;
    EXPECT_EQ(hopper::score_program(score, config, 0).text.find(kStores), std::string::npos);
  }
}

}  // namespace
}  // namespace fa3
