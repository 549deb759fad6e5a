// SPDX-License-Identifier: Apache-2.0
//
// The rule that decides whether a result passes must itself see every kind of damage.
#include "cli/call/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cli/call/random.h"

namespace fa3::cli {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

HostTensor normal(std::vector<int64_t> shape) {
  HostTensor tensor(FA3_FLOAT32, std::move(shape));
  fill_normal(&tensor, 3);
  return tensor;
}

HostTensor changed(const HostTensor& tensor, int64_t at, float value) {
  HostTensor copy = tensor.converted(FA3_FLOAT32);
  set_element(copy.data(), FA3_FLOAT32, at, value);
  return copy;
}

TEST(Compare, equal_tensors_have_no_error) {
  const HostTensor tensor = normal({5, 7});
  EXPECT_EQ(error_of(tensor, tensor).overall, 0);
  EXPECT_EQ(error_of(tensor, tensor).row, 0);
  EXPECT_EQ(max_abs_error(tensor, tensor), 0);
}

TEST(Compare, a_poisoned_element_is_an_infinite_error) {
  const HostTensor expected = normal({5, 7});
  for (float value : {std::nanf(""), kInfinity, -kInfinity}) {
    const HostTensor got = changed(expected, 17, value);
    EXPECT_EQ(error_of(got, expected).overall, kInfinity);
    EXPECT_EQ(error_of(got, expected).row, kInfinity);
    EXPECT_EQ(max_abs_error(got, expected), kInfinity);
    EXPECT_EQ(error_of(expected, got).overall, kInfinity) << "nor may a reference hide it";
    EXPECT_FALSE(within(error_of(got, expected), allowed_error({.overall = 1, .row = 1}, 1)));
  }
}

TEST(Compare, equal_infinities_and_nans_agree) {
  const HostTensor a = changed(changed(normal({4, 4}), 3, -kInfinity), 9, std::nanf(""));
  EXPECT_EQ(error_of(a, a).overall, 0);
  EXPECT_EQ(max_abs_error(a, a), 0);
  const HostTensor b = changed(a, 3, kInfinity);
  EXPECT_EQ(max_abs_error(b, a), kInfinity);
}

TEST(Compare, one_bad_row_shows_in_the_row_error) {
  const HostTensor expected = normal({1000, 8});
  const HostTensor got =
      changed(expected, 8 * 500, element(expected.data(), FA3_FLOAT32, 4000) + 3);
  EXPECT_LT(error_of(got, expected).overall, 0.05);
  EXPECT_GT(error_of(got, expected).row, 0.3);
}

TEST(Compare, a_result_where_zeros_are_due_is_an_infinite_error) {
  HostTensor zeros(FA3_FLOAT32, {2, 3});
  for (int64_t i = 0; i < 6; ++i) set_element(zeros.data(), FA3_FLOAT32, i, 0);
  EXPECT_EQ(error_of(zeros, zeros).overall, 0);
  EXPECT_EQ(error_of(changed(zeros, 4, 1e-30f), zeros).overall, kInfinity);
}

TEST(Compare, empty_tensors_agree) {
  EXPECT_EQ(error_of(normal({0, 3}), normal({0, 3})).overall, 0);
  EXPECT_EQ(error_of(normal({3, 0}), normal({3, 0})).row, 0);
}

// A bound of the scores that is too small would refuse right results, one too large hide wrong
// ones.
TEST(Compare, the_largest_score_is_bounded_by_norms_and_by_the_softcap) {
  Operands operands = make_operands({.batch = 1,
                                     .heads = 1,
                                     .kv_heads = 1,
                                     .seqlen_q = 2,
                                     .seqlen_k = 2,
                                     .head_dim = 4,
                                     .head_dim_v = 4},
                                    FA3_FLOAT32, Layout::bshd, {});
  for (int64_t i = 0; i < 8; ++i) {
    set_element(operands.q.data(), FA3_FLOAT32, i, i < 4 ? 1 : 3);  // rows of norm 2 and 6
    set_element(operands.k.data(), FA3_FLOAT32, i, i < 4 ? 2 : 0);  // and 4 and 0
  }
  fa3_options options = default_options();
  EXPECT_DOUBLE_EQ(largest_score(operands, options), 6 * 4 / std::sqrt(4.0));
  options.scale = 0.25f;
  EXPECT_DOUBLE_EQ(largest_score(operands, options), 6);
  options.softcap = 5;
  EXPECT_DOUBLE_EQ(largest_score(operands, options), 5);
}

TEST(Random, data_is_standard_normal_and_repeatable) {
  const HostTensor tensor = normal({101, 103});
  double sum = 0, squares = 0;
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    const double x = element(tensor.data(), FA3_FLOAT32, i);
    sum += x;
    squares += x * x;
  }
  const auto count = static_cast<double>(tensor.elements());
  EXPECT_NEAR(sum / count, 0, 0.05);
  EXPECT_NEAR(squares / count, 1, 0.05);
  EXPECT_EQ(max_abs_error(normal({101, 103}), tensor), 0);
}

}  // namespace
}  // namespace fa3::cli
