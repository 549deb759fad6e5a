// SPDX-License-Identifier: Apache-2.0
// What a score function adds to a row's scores, where that is a line, or two that meet
// (FA3_SCORE_ROW_LINE and FA3_SCORE_ROW_LINES). A softmax stays the same if all scores of a
// row change by one number. So lines are kept less a reference, about the largest number that is
// added: a product that begins with thousands would lose bits of the scores that weigh most. The
// row's LSE has the reference again. Next:
// hopper/forward/consumer/score/lines_score.cuh.
#pragma once

#include <type_traits>

#include "core/macros.h"
#include "engine/cuda/softmax/score_captures.h"

namespace fa3::cuda {

// What is added at a key, and how much more at the next one.
struct AddedNumber {
  float number, step;
};
struct AddedPoint : AddedNumber {
  int key;
};
// First and last.
struct KeySpan {
  int first, last;
};

// number + step * (k - key) at key k.
struct alignas(16) AddedLine : AddedNumber {
  int key;
};
// Two, of which the first holds up to where they meet, the second behind it. Where the first rises
// more, that is the smaller one at any key, else the larger one.
struct alignas(8) AddedLines {
  AddedNumber line[2];
  int key;
  int middle;  // where they meet, to half a key
};

// The kernel's score function adds some, and what it has of a row.
inline constexpr bool kAddsLines = kAddsLine || kAddsTwoLines;
using LinesOfRow = std::conditional_t<kAddsTwoLines, AddedLines, AddedLine>;
// References are kept of two tiles: the LSEs of one are stored when the next one has its lines.
inline constexpr int kAddedReferences = 2;

// ---- Lines are found from what is added at the first and the last key of a row ----

// The point where more is added. The number of a row's highest one is its reference.
FA3_HD inline AddedPoint higher(const AddedPoint& a, const AddedPoint& b) {
  return b.number > a.number ? b : a;
}
// Infinite numbers, and NaN, are to reach the scores.
FA3_HD inline float reference_of(const AddedPoint& point) {
  return point.number - point.number == 0.0f ? point.number : 0.0f;
}

// Where lines through these points meet, to half a key: the keys beside that are on one line each.
// inverse: of first.step - last.step, infinite or not.
FA3_HD inline int middle_of(const AddedPoint& first, const AddedPoint& last, float inverse) {
  const int keys = last.key - first.key;
  const float meet = (last.number - first.number - last.step * float(keys)) * inverse;
  return first.key + (meet > 0.0f ? meet < float(keys) ? int(meet + 0.5f) : keys : 0);
}

// The line through a point, seen from the reference's key; as products count, for which numbers are
// multiplied by inverse_scale.
FA3_HD inline AddedNumber line_through(const AddedPoint& point, float step,
                                       const AddedPoint& reference, float inverse_scale) {
  const float at = point.number - reference_of(reference) + step * float(reference.key - point.key);
  return {at * inverse_scale, step * inverse_scale};
}

}  // namespace fa3::cuda
