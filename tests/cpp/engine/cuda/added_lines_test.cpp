// SPDX-License-Identifier: Apache-2.0
// Lines that a score function adds to a row, found from a few keys: they are its numbers at all
// keys, less a reference that no number is far above.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "engine/cuda/softmax/added_lines.h"

namespace fa3::cuda {
namespace {

constexpr int kKeys = 5000;
constexpr float kInverseScale = 8.0f;

// x = height + slope * k - bend * |k - middle|, as kernels see it.
struct Bent {
  float height, slope, bend, middle;

  AddedPoint operator()(int key) const {
    const float beside = float(key) - middle;
    const float side = beside > 0.0f ? 1.0f : beside < 0.0f ? -1.0f : 0.0f;
    AddedPoint point;
    point.number = height + slope * float(key) - bend * std::fabs(beside);
    point.step = slope - bend * side;
    point.key = key;
    return point;
  }
};

// As the lanes of a row find them (score/lines_score.cuh).
float find(const Bent& x, KeySpan keys, float inverse_scale, AddedLine& line) {
  const AddedPoint reference = higher(x(keys.first), x(keys.last));
  static_cast<AddedNumber&>(line) =
      line_through(reference, reference.step, reference, inverse_scale);
  line.key = reference.key;
  return reference_of(reference);
}
float find(const Bent& x, KeySpan keys, float inverse_scale, AddedLines& lines) {
  const AddedPoint first = x(keys.first), last = x(keys.last);
  lines.middle = middle_of(first, last, 1.0f / (first.step - last.step));
  const AddedPoint before = x(std::max(lines.middle - 1, keys.first));
  const AddedPoint behind = x(std::min(lines.middle + 1, keys.last));
  const AddedPoint reference = higher(higher(first, before), higher(last, behind));
  lines.line[0] = line_through(before, first.step, reference, inverse_scale);
  lines.line[1] = line_through(behind, last.step, reference, inverse_scale);
  lines.key = reference.key;
  return reference_of(reference);
}

float at_key(const AddedLine& line, int key) {
  return line.number + line.step * float(key - line.key);
}
float at_key(const AddedLines& lines, int key) {
  const auto [a, step_a] = lines.line[0];
  const auto [b, step_b] = lines.line[1];
  const float first = a + step_a * float(key - lines.key);
  const float second = b + step_b * float(key - lines.key);
  if (key != lines.middle) return key < lines.middle ? first : second;
  return step_a >= step_b ? std::fmin(first, second) : std::fmax(first, second);
}

template <class Lines>
void expect_same(const Bent& x, KeySpan keys, float tolerance = 1e-6f) {
  Lines lines;
  const float reference = find(x, keys, kInverseScale, lines);
  float highest = -std::numeric_limits<float>::infinity();
  for (int key = keys.first; key <= keys.last; ++key) {
    const float right = (x(key).number - reference) * kInverseScale;
    ASSERT_NEAR(at_key(lines, key), right, tolerance * (1.0f + std::fabs(right)))
        << key << " of " << x.slope << " " << x.bend << " " << x.middle;
    highest = std::fmax(highest, x(key).number);
  }
  EXPECT_LE(highest - reference, std::fabs(x.slope) + std::fabs(x.bend)) << "above the reference";
}

TEST(AddedLines, a_line_is_kept_less_its_largest_number) {
  for (const float slope : {0.5f, -0.5f, 0.0f, 3.0f}) {
    for (const KeySpan keys : {KeySpan{0, kKeys - 1}, KeySpan{700, 1300}, KeySpan{9, 9}}) {
      expect_same<AddedLine>({-250.0f, slope, 0.0f, 0.0f}, keys);
    }
  }
}

TEST(AddedLines, two_lines_that_meet_anywhere) {
  for (const float bend : {0.5f, -0.5f, 0.25f, 0.0f}) {
    for (const float slope : {0.0f, 0.125f, -2.0f}) {
      for (const float middle : {-40.0f, 0.0f, 1.0f, 640.5f, 1000.0f, 4998.0f, 4999.0f, 6000.0f}) {
        expect_same<AddedLines>({0.0f, slope, bend, middle}, {0, kKeys - 1});
      }
    }
  }
}

// A causal row sees the keys before the place where lines meet, one with a window few keys.
TEST(AddedLines, two_lines_where_a_row_sees_some_keys) {
  for (const float bend : {1.0f, -1.0f}) {
    for (const KeySpan keys :
         {KeySpan{0, 1279}, KeySpan{2560, 2687}, KeySpan{1200, 4999}, KeySpan{7, 7}}) {
      expect_same<AddedLines>({0.0f, 0.25f, bend, 1200.0f}, keys);
    }
  }
}

TEST(AddedLines, slopes_of_any_bits_round_as_one_addition_does) {
  for (const float bend : {0.7f, -0.3f}) {
    Bent x{0.0f, 0.0f, bend, 2345.0f};
    AddedLines lines;
    const float reference = find(x, {0, kKeys - 1}, 1.0f, lines);
    for (int key = 0; key < kKeys; ++key) {
      const double right = -double(bend) * std::abs(key - 2345) - double(reference);
      ASSERT_NEAR(at_key(lines, key), right, 2e-7 * kKeys) << key;
    }
  }
}

TEST(AddedLines, infinite_numbers_and_nan_reach_the_scores) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  AddedLine line;
  EXPECT_EQ(find(Bent{-kInfinity, 1.0f, 0.0f, 0.0f}, {0, 99}, 1.0f, line), 0.0f);
  EXPECT_EQ(at_key(line, 50), -kInfinity);
  AddedLines lines;
  EXPECT_EQ(find(Bent{-kInfinity, 1.0f, 1.0f, 40.0f}, {0, 99}, 1.0f, lines), 0.0f);
  EXPECT_EQ(at_key(lines, 50), -kInfinity);
  find(Bent{0.0f, NAN, 1.0f, 40.0f}, {0, 99}, 1.0f, lines);
  EXPECT_TRUE(std::isnan(at_key(lines, 50)));
}

}  // namespace
}  // namespace fa3::cuda
