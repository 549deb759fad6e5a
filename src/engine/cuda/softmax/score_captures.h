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
#ifdef FA3_SCORE_ADDS  // a forward's function adds to the score, and knows nothing of it
inline constexpr bool kAddsToScore = true;
#else
inline constexpr bool kAddsToScore = false;
#endif
#ifdef FA3_SCORE_LINEAR  // what it adds changes by a step from key to key (linear())
inline constexpr bool kAddsLine = true;
#else
inline constexpr bool kAddsLine = false;
#endif
#ifdef FA3_SCORE_PIECEWISE_LINEAR  // and by another one behind some key (piecewise_linear())
inline constexpr bool kAddsTwoLines = true;
#else
inline constexpr bool kAddsTwoLines = false;
#endif
#ifdef FA3_SCORE_RUN  // it loads what lies beside each other for neighbouring keys (load_run())
inline constexpr bool kLoadsRun = true;
#else
inline constexpr bool kLoadsRun = false;
#endif
#ifdef FA3_SCORE_KEY_TERM  // what it adds is of a key, for all queries alike (key_term())
inline constexpr bool kAddsKeyTerm = true;
#else
inline constexpr bool kAddsKeyTerm = false;
#endif
#ifdef FA3_SCORE_TILE_ONCE  // and heads do not share its tiles
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
