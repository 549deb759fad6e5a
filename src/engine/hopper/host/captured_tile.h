// SPDX-License-Identifier: Apache-2.0
// Which captured tensor of a score function a kernel loads by tiles (cuda/softmax/
// score_function.cuh, load_of_score()), and its map. Next: captured_tile.cpp, score_program.h.
#pragma once

#include "core/problem.h"
#include "engine/hopper/host/tensor_map.h"

namespace fa3::hopper {

inline constexpr int kNoTile = -1;

// The number of the tensor that TMA can bring; kNoTile: the text asks for none, or for several, or
// the tensor ends before the sequences do, whose last index would be clamped, or its address or its
// strides are none for TMA.
int find_captured_tile(const fa3_score_function& score, int64_t seqlen_q, int64_t seqlen_k);

// The parts of rows and keys of which the tensor consists that the text reads by load_of_score():
// one that heads or sequences share is there once. 0: there is no such tensor.
int64_t num_captured_parts(const fa3_score_function& score);

// The number of a tensor whose gradient is stored; kNoTile: there is none.
int find_stored_gradient(const fa3_score_function& score);

// Why TMA cannot store it, or null if it can.
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

}  // namespace fa3::hopper
