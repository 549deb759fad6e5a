// SPDX-License-Identifier: Apache-2.0
// What a score function's text and tensors say without a compiler: tiles, pairs, stored gradients.
#include <gtest/gtest.h>

#include "engine/cuda/jit/fixture.h"
#include "engine/cuda/jit/score_program.h"
#include "engine/hopper/host/captured_tile.h"

namespace fa3 {
namespace {

TEST(ScoreText, AddsWhereItsOneReturnNamesTheScoreAlone) {
  const auto adds = [](const char* text) { return cuda::adds_to_score(function_of(text)); };
  EXPECT_TRUE(adds("const float x5 = 2.0f * h;\nreturn score + x5;"));
  EXPECT_TRUE(adds("using namespace score;\nconst float score_2 = 1.0f;\nreturn score + score_2;"));
  EXPECT_FALSE(adds("return score;"));
  EXPECT_FALSE(adds("const float x = 1.0f;\nreturn x + score;"));
  EXPECT_FALSE(adds("const float x = score;\nreturn score + x;"));
  EXPECT_FALSE(adds("using namespace score;\nconst float x = 2 * score;\nreturn score + x;"));
  EXPECT_FALSE(adds("if (h > 2) return 0.0f;\nconst float x = 1.0f;\nreturn score + x;"));
  EXPECT_FALSE(adds("const float x = 1.0f;\nreturn score + x > 0 ? 1 : 0;"));
  EXPECT_FALSE(adds("const float x = 1.0f;\nreturn score + x * x;"));
  EXPECT_FALSE(adds("return score + score;"));
}

TEST(Captures, AreTilesWhereTmaCanBringThem) {
  fa3_captured_tensor bias{};
  auto score = function_of("return score + load_of_score<Half, 0>(q_idx, kv_idx, h);");
  score.tensors = &bias;
  score.num_tensors = 1;
  bias = {.data = reinterpret_cast<const void*>(uintptr_t{0x7000}),
          .rank = 3,
          .shape = {4, 100, 200},
          .stride = {20800, 208, 1}};
  const fa3_captured_tensor good = bias;
  const auto found = [&] { return hopper::find_captured_tile(score, 100, 200); };
  EXPECT_EQ(found(), 0);
  EXPECT_EQ(hopper::find_captured_tile(score, 101, 200), hopper::kNoTile);
  EXPECT_EQ(hopper::find_captured_tile(score, 100, 201), hopper::kNoTile);
  bias.data = reinterpret_cast<const void*>(uintptr_t{0x7008});
  EXPECT_EQ(found(), hopper::kNoTile);
  bias = good;
  bias.stride[1] = 204;
  EXPECT_EQ(found(), hopper::kNoTile);
  bias = good;
  bias.stride[0] = 0;  // one for all heads
  EXPECT_EQ(found(), 0);
  bias = good;
  bias.stride[2] = 2;
  EXPECT_EQ(found(), hopper::kNoTile);
  bias = good;
  bias.rank = 1;
  EXPECT_EQ(found(), hopper::kNoTile);
  bias = good;
  score.text = "return score + load_of_key<Half, 0>(kv_idx, h, q_idx);";
  EXPECT_EQ(found(), hopper::kNoTile);
  score.text =
      "return score + load_of_score<Half, 0>(q_idx, kv_idx, h) * load_of_score<Half, 0>(q_idx, "
      "kv_idx, b);";
  EXPECT_EQ(found(), hopper::kNoTile);
  score.text = "return score + load_of_score<Half, 1>(q_idx, kv_idx, h);";
  EXPECT_EQ(found(), hopper::kNoTile);
}

TEST(Captures, HaveAStoredGradientWhereTmaCanStoreIt) {
  fa3_captured_tensor bias{.data = reinterpret_cast<const void*>(uintptr_t{0x7000}),
                           .rank = 3,
                           .stores_gradient = 1,
                           .shape = {4, 100, 200},
                           .stride = {20800, 208, 1}};
  auto score = function_of("return score + load_of_score<Half, 0>(q_idx, kv_idx, h);");
  score.tensors = &bias;
  score.num_tensors = 1;
  const auto obstacle = [&] { return hopper::stored_gradient_obstacle(score, 100, 200); };
  EXPECT_EQ(hopper::find_stored_gradient(score), hopper::kNoTile);
  EXPECT_EQ(obstacle(), nullptr);
  bias.gradient = reinterpret_cast<float*>(uintptr_t{0x8000});
  EXPECT_EQ(hopper::find_stored_gradient(score), 0);
  EXPECT_EQ(obstacle(), nullptr);
  bias.gradient = reinterpret_cast<float*>(uintptr_t{0x8004});
  EXPECT_NE(obstacle(), nullptr);
  bias.gradient = reinterpret_cast<float*>(uintptr_t{0x8000});
  bias.shape[2] = 204;
  EXPECT_NE(obstacle(), nullptr);  // its rows lie one behind the other
  bias.shape[2] = 200;
  score.slope = "return 2.0f;";
  EXPECT_NE(obstacle(), nullptr);
}

TEST(Captures, HavePairsWhereTwoNeighboursLieInOneWord) {
  fa3_captured_tensor t{};
  fa3_score_function score{};
  score.tensors = &t;
  score.num_tensors = 1;
  const auto pairs = [&](uintptr_t address, int64_t row_stride, int64_t key_stride) {
    t.data = reinterpret_cast<const void*>(address);
    t.rank = 2;
    t.shape[0] = 5;
    t.shape[1] = 33;
    t.stride[0] = row_stride;
    t.stride[1] = key_stride;
    return cuda::captures_of(score).tensors[0].extent_of_pairs;
  };
  EXPECT_EQ(pairs(0x7004, 40, 1), 33);
  EXPECT_EQ(pairs(0x7002, 40, 1), 0);
  EXPECT_EQ(pairs(0x7004, 33, 1), 0);
  EXPECT_EQ(pairs(0x7004, 40, 2), 0);
  t.rank = 0;
  EXPECT_EQ(cuda::captures_of(score).tensors[0].extent_of_pairs, 0);
}

}  // namespace
}  // namespace fa3
