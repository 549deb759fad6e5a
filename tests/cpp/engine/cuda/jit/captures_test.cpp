// SPDX-License-Identifier: Apache-2.0
// What a score function and its tensors say without a compiler: tiles, pairs, stored gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <type_traits>

#include "engine/ampere/kernels/backward.h"
#include "engine/ampere/kernels/forward.h"
#include "engine/ampere/launch/score_program.h"
#include "engine/cuda/jit/fixture.h"
#include "engine/cuda/jit/score_program.h"
#include "engine/hopper/host/captured_tile.h"
#include "engine/hopper/launch/score_program.h"

namespace fa3 {
namespace {

// Functions that differ in one thing each.
std::vector<fa3_score_function> some_functions(const fa3_captured_tensor* tensors) {
  auto bias = function_of("return x;", FA3_SCORE_ADDED, kElementOfScore);
  bias.tensors = tensors;
  bias.num_tensors = 1;
  std::vector<fa3_score_function> found{function_of("return tangent(score);"), bias};
  const auto also = [&found](fa3_score_function score, const auto& change) {
    change(score);
    found.push_back(score);
  };
  also(found[0], [](auto& f) { f.text = "return score * 2.0f;"; });
  also(found[0], [](auto& f) { f.kind = FA3_SCORE_ADDED; });
  also(found[0], [](auto& f) { f.repeats_tangents = 1; });
  also(found[0], [](auto& f) { f.may_hide = 1; });
  also(found[0], [](auto& f) { f.slope = ""; });
  also(found[0], [](auto& f) { f.slope = "return 2.0f;"; });
  also(bias, [](auto& f) { f.kind = FA3_SCORE_ANY; });
  also(bias, [](auto& f) { f.element.kind = FA3_ELEMENT_OF_KEY; });
  also(bias, [](auto& f) { f.element.kind = FA3_ELEMENT_RUN, f.element.step = 1; });
  also(bias, [](auto& f) { f.element.kind = FA3_ELEMENT_RUN, f.element.step = 2; });
  also(bias, [](auto& f) { f.element.type = "Half"; });
  also(bias, [](auto& f) { f.element.indices = "return at(b);"; });
  also(bias, [](auto& f) { f.gradients = "add<0>(gradient, h, q_idx, kv_idx);"; });
  also(bias, [](auto& f) {
    f.gradients = "add<0>(score, h, q_idx, kv_idx);";
    f.gradients_use_score = 1;
  });
  also(bias, [&](auto& f) { f.tensors = tensors + 1; });
  also(bias,
       [&](auto& f) { f.tensors = tensors + 2, f.element.stores_gradient = 1, f.gradients = ""; });
  also(bias, [](auto& f) { f.gradients = ""; });
  return found;
}

TEST(ScoreKeys, TellProgramsApart) {
  const fa3_captured_tensor own{.data = reinterpret_cast<const void*>(uintptr_t{0x7000}),
                                .rank = 3,
                                .shape = {4, 128, 128},
                                .stride = {16384, 128, 1}};
  fa3_captured_tensor tensors[3] = {own, own, own};
  tensors[1].stride[0] = 0;  // one for all heads
  tensors[2].gradient = reinterpret_cast<float*>(uintptr_t{0x9000});
  std::map<std::string, std::string> texts;
  int programs = 0;
  const auto see = [&](const cuda::ProgramKey& key, const cuda::Program& program) {
    const std::string text = program.architecture + program.text;
    EXPECT_EQ(texts.emplace(key.bytes(), text).first->second, text);
    ++programs;
  };
  for (const fa3_score_function& f : some_functions(tensors)) {
    const auto on_hopper = [&](const auto& config, int captured) {
      if constexpr (std::is_same_v<std::decay_t<decltype(config)>, hopper::Kernel>) {
        const hopper::Kernel kernel = hopper::with_score(config, f, captured);
        see(hopper::score_key(f, kernel), hopper::score_program(f, kernel));
      } else {
        see(hopper::score_key(f, config, captured), hopper::score_program(f, config, captured));
      }
    };
    const auto on_ampere = [&](const auto& config, const cuda::Capability& gpu) {
      see(ampere::score_key(f, config, gpu), ampere::score_program(f, config, gpu));
    };
    for (const auto e : {hopper::Element::kBf16, hopper::Element::kFp16}) {
      for (const auto v : {hopper::Variant::kDense, hopper::Variant::kGeneral}) {
        for (const int captured : {hopper::kNoTile, 0}) {
          const auto both = [&](const auto& row) { on_hopper(row.kernel.with(e, v), captured); };
          std::ranges::for_each(hopper::kBackwardTiles, both);
          std::ranges::for_each(hopper::kListedBackwardTiles, both);
        }
      }
      for (const hopper::Row& row : hopper::kForward) {
        if (row.built) continue;
        on_hopper(kernel_of(row, e), hopper::kNoTile);
        if (!row.kernel.is_decode()) on_hopper(kernel_of(row, e), 0);
      }
      for (const ampere::Row& row : ampere::kForward) {
        on_ampere(kernel_of(row, e).with_score_function(), {8, 0});
        on_ampere(kernel_of(row, e).with_score_function(), {8, 9});
        ampere::ForwardConfig of_cache = kernel_of(row, e).with_score_function();
        of_cache.quantized = true;
        on_ampere(of_cache, {8, 9});
      }
      for (const ampere::BackwardRow& row : ampere::kMaskedRows) {
        on_ampere(kernel_of(row, e).with_score_function(false), {8, 0});
        on_ampere(kernel_of(row, e).with_score_function(true), {8, 0});
      }
    }
  }
  EXPECT_GT(programs, 1000);
}

TEST(Captures, AreTilesWhereTmaCanBringThem) {
  fa3_captured_tensor bias{};
  auto score = function_of("return x;", FA3_SCORE_ADDED, kElementOfScore);
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
  score.element.kind = FA3_ELEMENT_OF_KEY;
  EXPECT_EQ(found(), hopper::kNoTile);
}

TEST(Captures, HaveTilesOfThoseTogetherThatShareThem) {
  struct Case {
    int64_t of_sequences, of_heads;  // extents of the tensor
    int64_t sequences, heads;
    int sequences_together, heads_together;
  };
  for (const Case c : {Case{1, 4, 2, 4, 2, 1}, Case{1, 4, 9, 4, 3, 1}, Case{1, 4, 5, 4, 1, 1},
                       Case{2, 4, 2, 4, 1, 1}, Case{3, 1, 3, 4, 1, 2}, Case{3, 1, 3, 5, 1, 1},
                       Case{1, 1, 2, 4, 2, 1}, Case{1, 1, 1, 6, 1, 2}, Case{1, 1, 1, 1, 1, 1},
                       Case{1, 4, 4, 4, 2, 1}, Case{4, 1, 4, 4, 1, 2}, Case{4, 4, 4, 4, 1, 1}}) {
    fa3_captured_tensor bias{.data = reinterpret_cast<const void*>(uintptr_t{0x7000}),
                             .rank = 4,
                             .shape = {c.of_sequences, c.of_heads, 100, 200},
                             .stride = {20800 * c.of_heads, 20800, 208, 1}};
    auto score = function_of("return x;", FA3_SCORE_ADDED, kElementOfScore);
    score.element.head_index = 1;
    score.tensors = &bias;
    score.num_tensors = 1;
    const auto expect = [&](int sequences, int heads, const char* what) {
      const hopper::TilesTogether t = hopper::choose_together(score, c.heads, c.sequences);
      EXPECT_EQ(t.batches, sequences) << what << ": " << c.sequences << " sequences, " << c.heads;
      EXPECT_EQ(t.packs, heads) << what << ": " << c.sequences << " sequences, " << c.heads;
    };
    expect(c.sequences_together, c.heads_together, "as it is");
    bias.shape[0] = c.sequences;  // the same, repeated
    bias.stride[0] = c.of_sequences == 1 ? 0 : bias.stride[0];
    expect(c.sequences_together, c.heads_together, "repeated");
    score.element.kind = FA3_ELEMENT_OF_KEY;
    expect(1, 1, "no tensor as large as the scores");
  }
}

TEST(Captures, HaveAStoredGradientWhereTmaCanStoreIt) {
  fa3_captured_tensor bias{.data = reinterpret_cast<const void*>(uintptr_t{0x7000}),
                           .rank = 3,
                           .shape = {4, 100, 200},
                           .stride = {20800, 208, 1}};
  auto score = function_of("return x;", FA3_SCORE_ADDED, kElementOfScore);
  score.element.stores_gradient = 1;
  score.tensors = &bias;
  score.num_tensors = 1;
  const auto obstacle = [&] { return hopper::stored_gradient_obstacle(score, 100, 200); };
  EXPECT_EQ(cuda::tensor_with_stored_gradient(score), nullptr);
  EXPECT_EQ(obstacle(), nullptr);
  bias.gradient = reinterpret_cast<float*>(uintptr_t{0x8000});
  EXPECT_EQ(cuda::tensor_with_stored_gradient(score), &bias);
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
