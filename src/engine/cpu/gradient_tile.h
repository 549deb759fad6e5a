// SPDX-License-Identifier: Apache-2.0
//
// What the backward driver (backward.cpp) hands to a kernel (simd/gradient_products.h): one block of
// query rows against one block of keys. Plain data, as in block_job.h.
#pragma once

#include <cstdint>

#include "core/mask_rule.h"
#include "engine/cpu/block_job.h"

namespace fa3::cpu {

// Queries and keys of a tile: whole row groups, and for the keys whole panels of every instruction
// set. P and dS are 2 x 78 KiB, K and V with their gradients 480 KiB at head dim 128: the L2 cache
// holds all. Sums of dK and dV are read and written once per 96 steps of the micro-kernel, 3% of it.
inline constexpr int64_t kGradientQueries = 16 * kRowsPerGroup;
inline constexpr int64_t kGradientKeys = 32 * kRowsPerGroup;
static_assert(kGradientKeys % 64 == 0);
// Floats of a row of P and dS. An odd number of cache lines: columns are read too, and lines of one
// column must not share a cache set.
inline constexpr int64_t kScoreStride = kGradientKeys + 16;

// Rows of operands and gradients are padded to dim and dim_v, multiples of 16 columns, with zeros.
struct GradientTile {
  int64_t head_dim = 0, head_dim_v = 0;
  int64_t dim = 0, dim_v = 0;
  float scale = 1.0f;
  float softcap = 0.0f;  // 0 = off

  // A multiple of kRowsPerGroup. Padding rows are zero and see nothing: their LSE is +inf, as is
  // that of every row without a key.
  int64_t num_queries = 0;
  const float* q = nullptr;            // (queries, dim)
  const float* d_o = nullptr;          // (queries, dim_v)
  const float* lse = nullptr;          // (queries)
  const float* delta = nullptr;        // (queries)
  const KeyRange* row_keys = nullptr;  // (queries): of the tile's keys; begins, ends never decrease

  int64_t num_keys = 0;
  const float* k = nullptr;   // (keys, dim)
  const float* kt = nullptr;  // panels of (head_dim, keys)
  const float* vt = nullptr;  // panels of (head_dim_v, keys)

  float* p = nullptr;   // (queries, kScoreStride)
  float* ds = nullptr;  // (queries, kScoreStride)

  // Sums that the tile is added to, without the factor `scale`.
  float* dq = nullptr;  // (queries, dim)
  float* dk = nullptr;  // (keys, dim)
  float* dv = nullptr;  // (keys, dim_v)
};

// Sums over parts of the keys, added in their order, to rows of the output's type.
struct GradientRows {
  const float* parts = nullptr;  // (parts, rows, dim padded to 16)
  int64_t part_stride = 0;
  int64_t num_parts = 1;
  float factor = 1.0f;
  int64_t rows = 0;
  int64_t dim = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
};

}  // namespace fa3::cpu
