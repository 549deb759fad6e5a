// SPDX-License-Identifier: Apache-2.0
// Which captured tensor of a score function a kernel loads by tiles (FA3_ELEMENT_OF_SCORE), its
// map, and the order of tiles by what they read of it. Next: captured_tile.cpp, score_program.h.
#pragma once

#include "core/problem.h"
#include "engine/hopper/host/tensor_map.h"
#include "engine/hopper/score_operands.h"

namespace fa3::hopper {

inline constexpr int kNoTile = -1;

// The number of the tensor that TMA can bring; kNoTile: the function has no element of scores, or
// the tensor ends before the sequences do, whose last index would be clamped, or its address or its
// strides are none for TMA.
int find_captured_tile(const fa3_score_function& score, int64_t seqlen_q, int64_t seqlen_k);

// How many parts of rows and keys the tensor of a function's element of scores has: of different
// heads, and of whatever else its indices depend on. 0: there is no such tensor.
struct CapturedParts {
  int64_t of_heads, of_others;
};
CapturedParts parts_of_captured(const fa3_score_function& score);

// Why TMA cannot store the gradient that is to be stored, or null if it can, or there is none.
const char* stored_gradient_obstacle(const fa3_score_function& score, int64_t seqlen_q,
                                     int64_t seqlen_k);

// Whether heads or sequences have elements of their own, so that most are read once in a call, or
// by tiles that come together, and keys and values are not to leave the L2 for them.
bool is_read_once(const fa3_captured_tensor& tensor);

// Maps of a captured tensor and of its gradient, whose boxes are slabs of `layout`. False: the
// driver refused.
bool encode_captured_map(CUtensorMap& map, const fa3_captured_tensor& tensor,
                         tile::TileLayout layout);
bool encode_gradient_map(CUtensorMap& map, const fa3_captured_tensor& tensor,
                         tile::TileLayout layout);

// Which tiles read the same part of a captured tensor, and so come together. For tiles of sequences
// that have one length, and no lists: these have orders of their own.
TilesTogether choose_together(const fa3_score_function& score, int64_t heads, int64_t batches);

}  // namespace fa3::hopper
