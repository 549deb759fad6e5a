// SPDX-License-Identifier: Apache-2.0
// The captured tensors of a score function, as a kernel is given them. Next: score_function.cuh.
#pragma once

#include <cstdint>

namespace fa3::cuda {

#ifdef FA3_SCORE_FUNCTION
inline constexpr bool kHasScoreFunction = true;  // in this compilation
#else
inline constexpr bool kHasScoreFunction = false;
#endif
#ifdef FA3_SCORE_TILE  // the number of the tensor of which tiles arrive beside those of scores
inline constexpr int kTileTensor = FA3_SCORE_TILE;
#else
inline constexpr int kTileTensor = -1;
#endif
inline constexpr bool kLoadsTile = kTileTensor >= 0;
#ifdef FA3_SCORE_ADDS  // and the function adds to the score alone
inline constexpr bool kAddsTile = true;
#else
inline constexpr bool kAddsTile = false;
#endif
#ifdef FA3_SCORE_TILE_ONCE  // and heads do not share them
inline constexpr bool kReadsTileOnce = true;
#else
inline constexpr bool kReadsTileOnce = false;
#endif
#ifdef FA3_SCORE_MAY_HIDE
inline constexpr bool kScoreMayHide = true;  // it returns -inf for many keys
#else
inline constexpr bool kScoreMayHide = false;
#endif

struct ScoreCaptures {
  static constexpr int kMost = 8;
  static constexpr int kDims = 4;

  struct Tensor {
    const void* data;
    int extent[kDims];  // at least 1 each
    int stride[kDims];  // in elements
    // Along the last dimension; 0: two neighbours of 16 bits each may not be loaded at once.
    int extent_of_pairs;
  };
  Tensor tensors[kMost];
};

}  // namespace fa3::cuda
