// SPDX-License-Identifier: Apache-2.0
// What a kernel knows of its score function when it is compiled, and the captured tensors that it
// is given. Next: score_function.cuh.
#pragma once

#include <cstdint>

#include "engine/cuda/softmax/constants.h"

namespace fa3::cuda {

// What the two 16-bit types of captured tensors are in memory.
struct Half {
  uint16_t bits;
};
struct Bfloat {
  uint16_t bits;
};

// fa3_score_kind and fa3_element_kind of the C interface.
enum class ScoreKind { kAny, kAdded, kKeyTerm, kRowLine, kRowLines };
enum class ElementKind { kNone, kOfScore, kOfKey, kRun, kClampedRun };

struct ScoreTraits {
  ScoreKind kind = ScoreKind::kAny;
  ElementKind element = ElementKind::kNone;
  int tensor = 0;                 // of which x is an element
  int step = 0;                   // of a run
  bool starts_products = false;   // products begin with what the function adds
  bool loads_tile = false;        // tiles of the tensor arrive beside those of scores
  bool repeats_tangents = false;  // a kernel may run it twice: see ScoreFunction::choose()
  bool keeps_scores = false;      // gradients of captured tensors ask for scores
  bool stores_gradient = false;   // the tensor's gradient is that of scores
};

// Beside the type of the tensor's elements.
template <class T>
struct ScoreOf : ScoreTraits {
  using Element = T;
};

// A program defines FA3_SCORE_FUNCTION as the ScoreOf of its function.
#ifdef FA3_SCORE_FUNCTION
inline constexpr auto kScore = FA3_SCORE_FUNCTION;
#else
inline constexpr ScoreOf<float> kScore{};
#endif
using ScoreElement = decltype(kScore)::Element;

inline constexpr bool kLoadsTile = kScore.loads_tile;
inline constexpr bool kAddsToScore = kScore.starts_products;
inline constexpr bool kAddsLine = kAddsToScore && kScore.kind == ScoreKind::kRowLine;
inline constexpr bool kAddsTwoLines = kAddsToScore && kScore.kind == ScoreKind::kRowLines;
inline constexpr bool kAddsKeyTerm = kAddsToScore && kScore.kind == ScoreKind::kKeyTerm;
inline constexpr bool kLoadsRun = kAddsToScore && kScore.element == ElementKind::kRun;
inline constexpr bool kLoadsClampedRun = kAddsToScore && kScore.element == ElementKind::kClampedRun;

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

// Elements of 16 bits that a forward loads before there are scores: a word for each two of a
// thread's scores, which are those of neighbouring keys.
inline constexpr bool kLoadsPairs = !kLoadsTile && (kScore.element == ElementKind::kOfScore ||
                                                    kScore.element == ElementKind::kOfKey);

template <int Scores, bool Some = kLoadsPairs>
struct Pairs {
  uint32_t words[Scores / 2];
};
template <int Scores>
struct Pairs<Scores, false> {};

// What a backward pass is given: beside the tensors, their gradients, of the same extents.
struct ScoreGradientParams {
  struct Gradient {
    float* data;  // null: not wanted
    int stride[ScoreCaptures::kDims];
  };
  ScoreCaptures captures;
  Gradient gradients[ScoreCaptures::kMost];
  float scale;  // softmax scale
};

}  // namespace fa3::cuda
