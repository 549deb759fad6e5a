// SPDX-License-Identifier: Apache-2.0
//
// Backward kernels whose score function captures tensors with gradients that depend on the score,
// which is kept for them (ScoreTraits::keeps_scores): caps that learn, one a head, and factors of
// keys. With numbers on the host, as in score_function_test.cpp.
#define FA3_SCORE_FUNCTION   \
  ScoreOf<float> {           \
    { .keeps_scores = true } \
  }
#include <gtest/gtest.h>

#include "numeric/backward_run.h"

namespace fa3::cuda {

template <ScoreKind>
float ScoreFunction::text(float score, float, int b, int h, int, int kv_idx) const {
  const float cap = load<float, 0>(h);
  return cap * tangent(score / cap) + load<float, 1>(b, kv_idx) * score;
}
float ScoreFunction::slope(float score, int b, int h, int, int kv_idx) const {
  const float t = tangent(score / load<float, 0>(h));
  return 1.0f - t * t + load<float, 1>(b, kv_idx);
}
void ScoreGradient::of(float gradient, float score, int b, int h, int, int kv_idx) {
  const float x = score / load<float, 0>(h), t = tangent(x);
  add_for_tile<0>(gradient * (t - x * (1.0f - t * t)), h);
  add_for_key<1>(gradient * score, b, kv_idx);
}

}  // namespace fa3::cuda

namespace fa3::ampere {
namespace {

// A captured tensor, its gradient, and that of double precision.
struct Captured {
  std::vector<float> values, gradient;
  std::vector<double> exact;

  explicit Captured(size_t count) : values(count), gradient(count), exact(count) {}
  void describe(cuda::ScoreGradientParams& params, int number, std::vector<int> extents) {
    int stride = 1;
    for (int dim = int(extents.size()) - 1; dim >= 0; --dim) {
      params.captures.tensors[number].extent[dim] = extents[size_t(dim)];
      params.captures.tensors[number].stride[dim] = stride;
      params.gradients[number].stride[dim] = stride;
      stride *= extents[size_t(dim)];
    }
    params.captures.tensors[number].data = values.data();
    params.gradients[number].data = gradient.data();
  }
  // The error beside the size, both as norms.
  double error() const {
    double off = 0, size = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      off += (double(gradient[i]) - exact[i]) * (double(gradient[i]) - exact[i]);
      size += exact[i] * exact[i];
    }
    return std::sqrt(off / size);
  }
};

template <BackwardConfig kRow>
void check(const testing::BackwardCase& c) {
  constexpr Element E = kRow.element;
  Captured caps(size_t(c.heads)), factors(size_t(c.batches * c.seqlen_k));
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.3f);
  for (int h = 0; h < c.heads; ++h) caps.values[size_t(h)] = 1.5f + 0.5f * float(h);
  for (float& x : factors.values) x = normal(random);
  const auto cap = [&](int h) { return double(caps.values[size_t(h)]); };
  const auto key = [&](int b, int k) { return size_t(b * c.seqlen_k + k); };
  Scoring scoring{.score =
                      [&](double s, int b, int h, int, int k) {
                        return cap(h) * std::tanh(s / cap(h)) +
                               double(factors.values[key(b, k)]) * s;
                      },
                  .slope =
                      [&](double s, int b, int h, int, int k) {
                        const double t = std::tanh(s / cap(h));
                        return 1 - t * t + double(factors.values[key(b, k)]);
                      }};
  scoring.on_gradient = [&](double gradient, double s, int b, int h, int, int k) {
    const double x = s / cap(h), t = std::tanh(x);
    caps.exact[size_t(h)] += gradient * (t - x * (1 - t * t));
    factors.exact[key(b, k)] += gradient * s;
  };
  caps.describe(scoring.captured, 0, {c.heads});
  factors.describe(scoring.captured, 1, {c.batches, c.seqlen_k});
  constexpr BackwardConfig kConfig = kRow.with_score_function(true);
  EXPECT_EQ(run<E>(emulated<kConfig>(), c, {}, scoring), "");
  // P and the score of each pair are rounded; sums of many see less of it.
  const double step = E == Element::kFp16 ? 0x1p-10 : 0x1p-7;
  EXPECT_LT(caps.error(), 2 * step);
  EXPECT_LT(factors.error(), step);
}

TEST(KeptScores, of_64_columns_give_the_gradients_of_double_precision) {
  check<kernel_of(kScoredRows[1], Element::kFp16)>({2, 2, 1, 70, 140, true});
}
TEST(KeptScores, of_128_columns_give_the_gradients_of_double_precision) {
  check<kernel_of(kScoredRows[2], Element::kBf16)>({1, 2, 1, 90, 150});
}
// Slopes beside P take half of the keys.
TEST(KeptScores, of_128_columns_small_give_the_gradients_of_double_precision) {
  constexpr BackwardConfig row = kScoredRows[3].kernel;
  static_assert(row.with_score_function(false).block_n == 128 &&
                row.with_score_function(true).block_n == 64);
  check<kernel_of(kScoredRows[3], Element::kFp16)>({1, 2, 1, 90, 150});
}
TEST(KeptScores, under_a_block_mask_give_the_gradients_of_double_precision) {
  check<kernel_of(kMaskedRows[0], Element::kBf16)>({1, 2, 1, 300, 300, true});
}

}  // namespace
}  // namespace fa3::ampere
