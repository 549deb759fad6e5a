// SPDX-License-Identifier: Apache-2.0
// What a score function loads before there are scores (score_function.cuh, load_of_key()): a word
// for each two of a thread's scores, which are those of neighbouring keys.
#pragma once

#include <cstdint>

namespace fa3::cuda {

#ifdef FA3_SCORE_PAIRS  // the number of the tensor from which load_of_key() loads
inline constexpr int kPairTensor = FA3_SCORE_PAIRS;
#else
inline constexpr int kPairTensor = -1;
#endif
inline constexpr bool kLoadsPairs = kPairTensor >= 0;

template <int Scores, bool Some = kLoadsPairs>
struct Pairs {
  uint32_t words[Scores / 2];
};
template <int Scores>
struct Pairs<Scores, false> {};

}  // namespace fa3::cuda
