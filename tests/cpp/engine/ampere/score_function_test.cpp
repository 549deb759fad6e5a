// SPDX-License-Identifier: Apache-2.0
//
// The kernels that take a score function, as NVRTC compiles them, with numbers on the host: this
// source alone has the function (FA3_SCORE_FUNCTION).
#include <gtest/gtest.h>

#include "numeric/backward_run.h"
#include "numeric/forward_run.h"

namespace fa3::ampere {
namespace {

// Every argument counts; query 3 sees no key, others not all.
template <class Float>
Float scored(Float score, int b, int h, int q, int k) {
  if (q == 3 || (q + 3 * k + h + b) % 5 == 0) return -std::numeric_limits<Float>::infinity();
  return Float(-0.5) * score + Float(0.02) * Float(k - q) + Float(0.1) * Float(h + 2 * b);
}
constexpr float kSlope = -0.5f;

}  // namespace
}  // namespace fa3::ampere

namespace fa3::cuda {

float ScoreFunction::of(float score, int b, int h, int q_idx, int kv_idx) const {
  return ampere::scored(score, b, h, q_idx, kv_idx);
}
float ScoreFunction::slope(float, int, int, int, int) const {
  return ampere::kSlope;
}
// Two tensors, whose gradients are sums for a key and for a tile.
void ScoreGradient::of(float gradient, float, int b, int h, int, int kv_idx) {
  add_for_key<0>(gradient, b, kv_idx);
  add_for_tile<1>(gradient, h);
}

}  // namespace fa3::cuda

namespace fa3::ampere {
namespace {

MaskRule causal() {
  return {.right = 0};
}

class Scored : public ::testing::TestWithParam<NumericCase> {};
TEST_P(Scored, agrees_with_the_textbook) {
  NumericCase c = GetParam();
  c.function = &scored<double>;
  NumericRun run(c);
  const std::string problem = run.problem();
  EXPECT_EQ(problem, "") << run.words();
}
const NumericCase kCases[] = {
    {.name = "several_blocks", .batch = 2, .heads_q = 2, .seqlen_q = 140, .seqlen_k = 200},
    {.name = "many_keys", .seqlen_q = 20, .seqlen_k = 1100, .mask = causal()},
    {.name = "fp16", .heads_q = 2, .seqlen_q = 40, .seqlen_k = 150, .dtype = DType::float16},
    {.name = "columns_128", .seqlen_q = 140, .seqlen_k = 150, .d = 128, .dv = 128},
    {.name = "columns_192", .seqlen_q = 70, .seqlen_k = 80, .d = 192, .dv = 128},
    {.name = "columns_256", .seqlen_q = 70, .seqlen_k = 80, .d = 256, .dv = 256},
    {.name = "packed_heads",
     .batch = 2,
     .heads_q = 8,
     .heads_k = 2,
     .seqlen_q = 9,
     .seqlen_k = 80,
     .mask = causal()},
    {.name = "packed",
     .batch = 4,
     .heads_q = 2,
     .heads_k = 2,
     .seqlen_q = 150,
     .seqlen_k = 90,
     .mask = causal(),
     .cu_q = {0, 5, 5, 150, 160},
     .cu_k = {0, 60, 70, 70, 90}},
    {.name = "splits_of_a_window",
     .heads_q = 2,
     .seqlen_q = 140,
     .seqlen_k = 400,
     .mask = {.left = 130, .right = 0},
     .num_splits = 3},
    {.name = "decoding_in_pages",
     .batch = 3,
     .heads_q = 8,
     .heads_k = 2,
     .seqlen_k = 600,
     .d = 128,
     .dv = 128,
     .used_k = {600, 0, 411},
     .page_size = 7,
     .num_splits = 4},
    {.name = "left_padding_and_entries",
     .batch = 2,
     .heads_q = 4,
     .heads_k = 2,
     .seqlen_q = 5,
     .seqlen_k = 300,
     .mask = causal(),
     .used_k = {290, 60},
     .left = {3, 55},
     .batch_index = {2, 0},
     .num_splits = 2},
    {.name = "e4m3_cache_of_pages",
     .batch = 2,
     .heads_q = 4,
     .heads_k = 2,
     .seqlen_q = 2,
     .seqlen_k = 250,
     .d = 128,
     .dv = 128,
     .mask = causal(),
     .used_k = {250, 101},
     .page_size = 16,
     .num_splits = 3,
     .cache = DType::float8_e4m3},
    {.name = "e5m2_cache",
     .heads_q = 2,
     .seqlen_q = 40,
     .seqlen_k = 90,
     .cache = DType::float8_e5m2},
    {.name = "block_mask", .heads_q = 2, .seqlen_q = 300, .seqlen_k = 400, .block_mask = true},
    {.name = "packed_under_a_block_mask",
     .batch = 4,
     .heads_q = 2,
     .heads_k = 1,
     .seqlen_q = 150,
     .seqlen_k = 290,
     .mask = causal(),
     .cu_q = {0, 5, 5, 150, 160},
     .cu_k = {0, 60, 70, 70, 290},
     .block_mask = true,
     .map_by_sequence = true},
};
INSTANTIATE_TEST_SUITE_P(Forward, Scored, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

template <BackwardConfig Row, Element E>
void check_backward(const testing::BackwardCase& c) {
  constexpr BackwardConfig tile = Row.with(E, true);
  const Scoring scoring{.score = &scored<double>,
                        .slope = [](double, int, int, int, int) { return double(kSlope); }};
  EXPECT_EQ(run<E>(emulated<tile.with_score_function(false)>(), c, {}, scoring), "");
  EXPECT_EQ(run<E>(emulated<tile.with_score_function(true)>(), c, {}, scoring), "");
}
TEST(ScoredBackward, of_64_columns_agrees_with_double_precision) {
  check_backward<kBackwardTable[1].config, Element::kFp16>({2, 2, 1, 70, 140, true});
}
TEST(ScoredBackward, of_128_columns_agrees_with_double_precision) {
  check_backward<kBackwardTable[2].config, Element::kBf16>({1, 2, 1, 90, 150});
}
TEST(ScoredBackward, under_a_block_mask_agrees_with_double_precision) {
  check_backward<kMaskBackwardTable[0].config, Element::kBf16>({1, 2, 1, 300, 300, true});
}
TEST(ScoredBackward, of_packed_sequences_under_a_block_mask_agrees_with_double_precision) {
  const testing::Side queries{.owned = {5, 0, 150}, .used = {5, 0, 140}};
  const testing::Side keys{.owned = {60, 10, 220}, .used = {60, 10, 200}};
  testing::BackwardCase c = testing::ragged_case("packed", 2, 1, queries, keys);
  c.causal = true;
  check_backward<kMaskBackwardTable[0].config, Element::kBf16>(c);
}

}  // namespace
}  // namespace fa3::ampere
