// SPDX-License-Identifier: Apache-2.0
// Which row of the tables of compiled kernels does a problem, and how. Pure functions. Next:
// choose_tiles.h (packed heads, cut keys), plan_forward.cpp (the plan of it).
#pragma once

#include <span>

#include "engine/hopper/describe_launch.h"

namespace fa3::hopper {

constexpr int kNoRow = -1;

// What the choice of a row of kForwardTable depends on.
struct ForwardShape {
  int64_t head_dim;
  int64_t head_dim_v;
  int64_t keys;  // that a query may see
  // Of a sequence's queries, heads packed, where they are known to be few.
  int64_t rows = INT64_MAX;
  bool single_rows = false;  // of keys are copied, from pages of odd sizes
  bool cut = false;          // tiles are to be cut along the keys
  bool any_rows = false;     // ForwardConfig::stores_any_rows()
};

// The row of a table for a shape, or kNoRow.
int choose_row(const ForwardShape& shape, std::span<const CompiledForward> table = kForwardTable);

// Whether a kernel can read pages row by row: the copy engine writes to multiples of 128 bytes.
bool copies_single_rows(const ForwardConfig& config);

// The rows that may do a problem, and its shape for them.
std::span<const CompiledForward> table_of(const Problem& problem);
ForwardShape shape_of(const Problem& problem);

// A row of the table and how it is used, on so many multiprocessors; the pack and the cut go into the
// launch.
int choose_row_and_cut(const Problem& problem, int multiprocessors, ForwardLaunch* launch);

// Whether a kernel of kDecodeTable does a launch whose cut is chosen; its row for one that a row of
// kForwardTable would do, or kNoRow.
bool decodes(const ForwardConfig& config, const Problem& problem, const ForwardLaunch& launch);
int choose_decode_row(const Problem& problem, int row, const ForwardLaunch& launch);

}  // namespace fa3::hopper
