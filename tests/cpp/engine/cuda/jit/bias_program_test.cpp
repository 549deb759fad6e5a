// SPDX-License-Identifier: Apache-2.0
// Functions that load by keys or by scores become machine code without a GPU, by NVRTC.
#include <gtest/gtest.h>

#include "engine/cuda/jit/fixture.h"
#include "engine/cuda/jit/kernel_cache.h"
#include "engine/hopper/config/config_text.h"
#include "engine/hopper/host/captured_tile.h"
#include "engine/hopper/launch/score_program.h"

namespace fa3 {
namespace {

TEST_F(ScoreProgram, LoadsElementsOfKeysAhead) {
  FA3_SKIP_WITHOUT_NVRTC();
  fa3_captured_tensor tensors[4] = {};
  auto score = function_of(
      "return score * load<float, 0>(h) + x;", FA3_SCORE_ANY,
      {.kind = FA3_ELEMENT_OF_KEY, .tensor = 3, .type = "Half", .indices = "return at(q_idx);"});
  score.tensors = tensors;
  score.num_tensors = 4;
  const auto c =
      scored_kernels(Scored::kAny, hopper::Tiles::kVarlen, hopper::Element::kFp16).front();
  const auto program = program_of(score, c);
  EXPECT_EQ(traits_in(program),
            line_of("Half", {.element = cuda::ElementKind::kOfKey, .tensor = 3}));
  auto hides = score;
  hides.may_hide = 1;
  const auto with_pairs = [&](bool may_hide) {
    hopper::Kernel kernel = c;
    kernel.captured = {hopper::Ahead::kPairs, may_hide};
    return cuda::text_of(kernel);
  };
  EXPECT_NE(program.text.find(with_pairs(false)), std::string::npos);
  EXPECT_NE(program_of(hides, c).text.find(with_pairs(true)), std::string::npos);
  std::string code;
  const Status status = cuda::find_code(program, nullptr, &code);
  EXPECT_TRUE(status.ok()) << status.message();
}

// Which kernels load tiles of a bias that has an element for each score.
TEST_F(ScoreProgram, LoadsTilesWhereSharedMemoryLasts) {
  FA3_SKIP_WITHOUT_NVRTC();
  fa3_captured_tensor bias{};
  auto score = function_of("return score + x;", FA3_SCORE_ANY, kElementOfScore);
  score.tensors = &bias;
  score.num_tensors = 1;
  score.may_hide = 1;
  const auto compiles = [&](const auto& config) {
    const cuda::Program program = program_of(score, config, 0);
    std::string code;
    const Status status = cuda::find_code(program, nullptr, &code);
    EXPECT_TRUE(status.ok()) << columns_of(config) << ": " << status.message();
  };
  const auto dense = [](const auto& row) {
    return row.kernel.with(hopper::Element::kBf16, hopper::Variant::kDense);
  };
  const auto general = [](const auto& row, hopper::Element element) {
    return row.kernel.with(element, hopper::Variant::kGeneral);
  };
  for (const auto& kernel : scored_kernels(Scored::kAny)) {
    EXPECT_EQ(hopper::takes_captured_tile(kernel), kernel.shape.block_n % 64 == 0)
        << kernel.shape.head_dim;
  }
  for (const auto& kernel : scored_kernels(Scored::kListed, hopper::Tiles::kListed)) {
    EXPECT_EQ(hopper::takes_captured_tile(kernel), kernel.shape.head_dim == 64);
  }
  for (const hopper::BackwardRow& row : hopper::kBackwardTiles) {
    EXPECT_EQ(dense(row).takes_captured_tile(), row.kernel.shape.head_dim <= 128);
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
  for (const hopper::BackwardRow& row : hopper::kBackwardTiles) {
    if (row.kernel.shape.head_dim != 128 && (is_quick() || row.kernel.shape.head_dim > 128))
      continue;
    compiles(dense(row));
    if (is_quick()) continue;
    compiles(dense(row).deterministic());
    compiles(general(row, hopper::Element::kFp16));
  }
  compiles(dense(hopper::kListedBackwardTiles.front()));
  if (!is_quick()) compiles(dense(hopper::kListedBackwardTiles.back()));
  score.slope = "return 0.5f * score;";
  compiles(hopper::kBackwardTiles[0].kernel.with(hopper::Element::kBf16, hopper::Variant::kCapped));
}

TEST_F(ScoreProgram, BeginsWithWhatTheFunctionAdds) {
  FA3_SKIP_WITHOUT_NVRTC();
  auto score = function_of("return x;", FA3_SCORE_ADDED, kElementOfScore);
  fa3_captured_tensor bias{.rank = 3, .shape = {4, 100, 200}, .stride = {20800, 208, 1}};
  score.tensors = &bias;
  score.num_tensors = 1;
  cuda::ScoreTraits expected{.kind = cuda::ScoreKind::kAdded,
                             .element = cuda::ElementKind::kOfScore,
                             .starts_products = true,
                             .loads_tile = true};
  // What it is told of the function, and in its kernel of the tensor.
  const auto expect_told = [&](int captured, hopper::Ahead ahead) {
    const auto program = program_of(score, kSmall, captured);
    EXPECT_EQ(traits_in(program), line_of("Bfloat", expected));
    EXPECT_NE(program.text.find(cuda::text_of(hopper::Captured{ahead, false})), std::string::npos);
  };
  expect_told(0, hopper::Ahead::kTileReadOnce);
  const auto compiles = [&](const hopper::Kernel& config) {
    std::string code;
    const Status status = cuda::find_code(program_of(score, config, 0), nullptr, &code);
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
  score.may_hide = 0;
  expect_told(0, hopper::Ahead::kTile);
  bias = {.rank = 2, .shape = {100, 200}, .stride = {208, 1}};
  expect_told(0, hopper::Ahead::kTile);
  // Without tiles there is nothing to begin with.
  expected.starts_products = expected.loads_tile = false;
  expect_told(hopper::kNoTile, hopper::Ahead::kPairs);
}

TEST_F(ScoreProgram, BeginsWithLinesAndRuns) {
  FA3_SKIP_WITHOUT_NVRTC();
  fa3_captured_tensor table{};
  const auto with_table = [&](fa3_score_function score) {
    score.tensors = &table;
    score.num_tensors = 1;
    return score;
  };
  const auto line = with_table(function_of(
      "const float s = load<float, 0>(h);\nreturn {s * (kv_idx - q_idx), s};", FA3_SCORE_ROW_LINE));
  const auto two_lines = with_table(function_of(
      "const float s = kv_idx < q_idx ? 1.0f : -1.0f;\nreturn {s * (kv_idx - q_idx), s};",
      FA3_SCORE_ROW_LINES));
  const auto run = with_table(function_of("return x;", FA3_SCORE_ADDED,
                                          {.kind = FA3_ELEMENT_RUN,
                                           .step = -1,
                                           .type = "Half",
                                           .indices = "return at(h, q_idx - kv_idx);"}));
  const auto clamped_run =
      with_table(function_of("return x;", FA3_SCORE_ADDED,
                             {.kind = FA3_ELEMENT_CLAMPED_RUN,
                              .step = 1,
                              .type = "float",
                              .indices = "return at(h, score::minimum(kv_idx, 99));"}));
  const auto key_term =
      with_table(function_of("return load<float, 0>(h, kv_idx);", FA3_SCORE_KEY_TERM));
  // A kernel is told that its products begin with the function, which compiles.
  const auto starts = [](const fa3_score_function& score, const hopper::Kernel& kernel,
                         bool compiles = true) {
    const auto program = program_of(score, kernel);
    cuda::ScoreTraits expected = cuda::traits_of(score);
    expected.starts_products = true;
    const char* const type = score.element.type == nullptr ? "float" : score.element.type;
    EXPECT_EQ(traits_in(program), line_of(type, expected));
    std::string code;
    const Status status = compiles ? cuda::find_code(program, nullptr, &code) : Status{};
    EXPECT_TRUE(status.ok()) << kernel.shape.head_dim << ": " << status.message();
  };
  constexpr auto kGeneral = hopper::Tiles::kVarlen;
  for (const auto& kernel : tried_rows(scored_kernels(Scored::kPure))) {
    starts(line, kernel);
    starts(run, kernel);
    starts(clamped_run, kernel);
  }
  for (const auto& kernel : tried_rows(scored_kernels(Scored::kPure, kGeneral))) {
    starts(two_lines, kernel);
    starts(key_term, kernel);
    if (is_quick()) continue;
    starts(line, kernel);
    starts(run, kernel);
  }
  for (const auto& kernel : tried_rows(scored_kernels(Scored::kListed, hopper::Tiles::kListed))) {
    starts(line, kernel);
    starts(key_term, kernel);
  }
  if (!is_quick()) {
    for (const auto& kernel : scored_kernels(Scored::kListed, hopper::Tiles::kListedVarlen)) {
      starts(run, kernel);
    }
  }
  // At 256 columns lines and terms of keys take a stage of keys and values from the pipeline.
  const auto compiled = [](const auto& kernel) {
    return !is_quick() || kernel.shape.head_dim == 256;
  };
  for (const auto& kernel : scored_kernels(Scored::kAny, kGeneral)) {
    starts(two_lines, kernel, compiled(kernel));
    if (!is_quick()) starts(line, kernel);
  }
  for (const auto& kernel : scored_kernels(Scored::kAny)) {
    starts(key_term, kernel, compiled(kernel));
  }
}

TEST_F(ScoreProgram, StoresTheGradientOfScores) {
  FA3_SKIP_WITHOUT_NVRTC();
  fa3_captured_tensor bias{};
  auto score = function_of("return x;", FA3_SCORE_ADDED, kElementOfScore);
  score.gradients = "";
  score.tensors = &bias;
  score.num_tensors = 1;
  const auto told = [&](const hopper::BackwardConfig& c) {
    return traits_in(program_of(score, c, 0));
  };
  cuda::ScoreTraits adds{
      .kind = cuda::ScoreKind::kAdded, .element = cuda::ElementKind::kOfScore, .loads_tile = true};
  cuda::ScoreTraits stores = adds;
  stores.stores_gradient = true;
  for (const auto* row :
       {&hopper::kBackwardTiles[0], &hopper::kBackwardTiles[2], &hopper::kListedBackwardTiles[0]}) {
    const auto config = row->kernel.with(hopper::Element::kBf16, hopper::Variant::kDense);
    score.element.stores_gradient = 1;
    bias.gradient = nullptr;
    EXPECT_EQ(told(config), line_of("Bfloat", adds));
    float gradient = 0;
    bias.gradient = &gradient;
    EXPECT_EQ(told(config), line_of("Bfloat", stores));
    std::string code;
    const Status status = cuda::find_code(program_of(score, config, 0), nullptr, &code);
    EXPECT_TRUE(status.ok()) << columns_of(config) << ": " << status.message();
    score.element.stores_gradient = 0;
    EXPECT_EQ(told(config), line_of("Bfloat", adds));
  }
}

TEST_F(ScoreProgram, DropsWeightsBesideAFunction) {
  FA3_SKIP_WITHOUT_NVRTC();
  fa3_captured_tensor bias{.rank = 3, .shape = {4, 100, 200}, .stride = {20800, 208, 1}};
  const auto with_bias = [&](fa3_score_function score) {
    score.tensors = &bias;
    score.num_tensors = 1;
    score.gradients = "add<0>(gradient, h, q_idx, kv_idx);";
    return score;
  };
  const auto compiles = [](const fa3_score_function& score, const auto& config, int captured) {
    std::string code;
    const Status status = cuda::find_code(program_of(score, config, captured), nullptr, &code);
    EXPECT_TRUE(status.ok()) << columns_of(config) << ": " << status.message();
  };
  const auto added = with_bias(function_of("return x;", FA3_SCORE_ADDED, kElementOfScore));
  const auto line = with_bias(function_of(
      "return {load<float, 0>(h, 0, 0) * (kv_idx - q_idx), 1.0f};", FA3_SCORE_ROW_LINE));
  const auto any = with_bias(function_of("return score * x;", FA3_SCORE_ANY, kElementOfScore));
  float gradient = 0;
  auto stored_bias = bias;
  stored_bias.gradient = &gradient;
  auto stored = added;
  stored.tensors = &stored_bias;
  stored.gradients = "";
  stored.element.stores_gradient = 1;
  const auto kernels = scored_kernels(Scored::kDropped, hopper::Tiles::kVarlen);
  EXPECT_EQ(kernels.size(), 3u);
  for (const auto& kernel : tried_rows(kernels)) {
    compiles(added, kernel, hopper::takes_captured_tile(kernel) ? 0 : hopper::kNoTile);
    compiles(line, kernel, hopper::kNoTile);
    if (!is_quick()) compiles(any, kernel, hopper::kNoTile);
  }
  for (const hopper::BackwardRow& row : hopper::kBackward) {
    const hopper::BackwardConfig& c = row.kernel;
    if (!c.dropout() || !c.signs_p() || (is_quick() && c.shape.head_dim != 64)) continue;
    compiles(added, c, 0);
    compiles(stored, c.deterministic(), 0);
    if (!is_quick()) compiles(line, c.deterministic(), hopper::kNoTile);
  }
}

}  // namespace
}  // namespace fa3
