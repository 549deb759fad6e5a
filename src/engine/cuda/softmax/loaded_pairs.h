// SPDX-License-Identifier: Apache-2.0
// Elements of 16 bits that a forward loads before there are scores: a word for each two of a
// thread's scores, which are those of neighbouring keys.
#pragma once

#include <cstdint>

#include "engine/cuda/softmax/score_captures.h"

namespace fa3::cuda {

inline constexpr bool kLoadsPairs = !kLoadsTile && (kScore.element == ElementKind::kOfScore ||
                                                    kScore.element == ElementKind::kOfKey);

template <int Scores, bool Some = kLoadsPairs>
struct Pairs {
  uint32_t words[Scores / 2];
};
template <int Scores>
struct Pairs<Scores, false> {};

}  // namespace fa3::cuda
