// SPDX-License-Identifier: Apache-2.0
//
// The kernels that take a score function, as NVRTC compiles them, with numbers on the host: this
// source alone has the function.
#define FA3_SCORE_FUNCTION \
  ScoreOf<float> {}
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

template <ScoreKind>
float ScoreFunction::text(float score, float, int b, int h, int q_idx, int kv_idx) const {
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
// Sequences, heads and heads of keys, queries and keys, columns of keys and of values, mask.
const NumericCase kCases[] = {
    {"several_blocks", 2, 2, 1, 140, 200},
    {"many_keys", 1, 1, 1, 20, 1100, 64, 64, causal()},
    with({"fp16", 1, 2, 1, 40, 150}, [](auto& c) { c.dtype = DType::float16; }),
    {"columns_128", 1, 1, 1, 140, 150, 128, 128},
    {"columns_192", 1, 1, 1, 70, 80, 192, 128},
    {"columns_256", 1, 1, 1, 70, 80, 256, 256},
    {"packed_heads", 2, 8, 2, 9, 80, 64, 64, causal()},
    with({"packed", 4, 2, 2, 150, 90, 64, 64, causal()},
         [](auto& c) {
           c.cu_q = {0, 5, 5, 150, 160}, c.cu_k = {0, 60, 70, 70, 90};
         }),
    with({"splits_of_a_window", 1, 2, 1, 140, 400, 64, 64, {.left = 130, .right = 0}},
         [](auto& c) { c.num_splits = 3; }),
    with({"decoding_in_pages", 3, 8, 2, 1, 600, 128, 128},
         [](auto& c) {
           c.used_k = {600, 0, 411}, c.page_size = 7, c.num_splits = 4;
         }),
    with({"left_padding_and_entries", 2, 4, 2, 5, 300, 64, 64, causal()},
         [](auto& c) {
           c.used_k = {290, 60}, c.left = {3, 55}, c.batch_index = {2, 0}, c.num_splits = 2;
         }),
    with({"e4m3_cache_of_pages", 2, 4, 2, 2, 250, 128, 128, causal()},
         [](auto& c) {
           c.used_k = {250, 101}, c.page_size = 16, c.num_splits = 3, c.cache = DType::float8_e4m3;
         }),
    with({"e5m2_cache", 1, 2, 1, 40, 90}, [](auto& c) { c.cache = DType::float8_e5m2; }),
    with({"block_mask", 1, 2, 1, 300, 400}, [](auto& c) { c.block_mask = true; }),
    with({"packed_under_a_block_mask", 4, 2, 1, 150, 290, 64, 64, causal()},
         [](auto& c) {
           c.cu_q = {0, 5, 5, 150, 160}, c.cu_k = {0, 60, 70, 70, 290}, c.block_mask = true,
           c.map_by_sequence = true;
         }),
};
INSTANTIATE_TEST_SUITE_P(Forward, Scored, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

template <BackwardConfig kRow>
void check_backward(const testing::BackwardCase& c) {
  constexpr Element E = kRow.element;
  const Scoring scoring{.score = &scored<double>,
                        .slope = [](double, int, int, int, int) { return double(kSlope); }};
  EXPECT_EQ(run<E>(emulated<kRow.with_score_function(false)>(), c, {}, scoring), "");
  EXPECT_EQ(run<E>(emulated<kRow.with_score_function(true)>(), c, {}, scoring), "");
}
TEST(ScoredBackward, of_64_columns_agrees_with_double_precision) {
  check_backward<kernel_of(kScoredRows[1], Element::kFp16)>({2, 2, 1, 70, 140, true});
}
TEST(ScoredBackward, of_128_columns_agrees_with_double_precision) {
  check_backward<kernel_of(kScoredRows[2], Element::kBf16)>({1, 2, 1, 90, 150});
}
TEST(ScoredBackward, under_a_block_mask_agrees_with_double_precision) {
  check_backward<kernel_of(kMaskedRows[0], Element::kBf16)>({1, 2, 1, 300, 300, true});
}
TEST(ScoredBackward, of_packed_sequences_under_a_block_mask_agrees_with_double_precision) {
  const testing::Side queries{.owned = {5, 0, 150}, .used = {5, 0, 140}};
  const testing::Side keys{.owned = {60, 10, 220}, .used = {60, 10, 200}};
  testing::BackwardCase c = testing::ragged_case("packed", 2, 1, queries, keys);
  c.causal = true;
  check_backward<kernel_of(kMaskedRows[0], Element::kBf16)>(c);
}

}  // namespace
}  // namespace fa3::ampere
