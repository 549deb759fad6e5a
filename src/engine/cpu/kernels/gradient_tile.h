// SPDX-License-Identifier: Apache-2.0
//
// What the backward driver (backward.cpp) hands to a kernel (simd/backward/gradient_products.h):
// one block of query rows against one block of keys. Plain data, as in block_job.h.
#pragma once

#include <cstdint>

#include "core/mask/mask_rule.h"
#include "engine/cpu/kernels/block_job.h"

namespace fa3::cpu {

// Queries and keys of a tile, in whole row groups; whole panels of keys of every instruction set.
struct GradientShape {
  int64_t rows_per_group;
  int64_t queries;
  int64_t keys;
};

// For the micro-kernel: P and dS are 2 x 78 KiB, K and V with their gradients 480 KiB at head dim
// 128: the L2 cache holds all. Sums of dK and dV are read and written once per 96 steps, 3% of it.
inline constexpr GradientShape kFloatGradientShape = {
    .rows_per_group = kRowsPerGroup, .queries = 16 * kRowsPerGroup, .keys = 32 * kRowsPerGroup};

// For dot products of pairs: 192 queries are 96 steps again. Q and dO are packed for every block of
// keys, which then takes twice as long: 3 to 5% faster than 192 keys, though P and dS are 444 KiB
// and all buffers at head dim 128 are 1.3 MiB.
inline constexpr GradientShape kPairGradientShape = {
    .rows_per_group = kRowsPerGroup, .queries = 32 * kRowsPerGroup, .keys = 64 * kRowsPerGroup};
static_assert(kFloatGradientShape.keys % 64 == 0 && kPairGradientShape.keys % 64 == 0);

// Floats behind a row of P and dS, which make it an odd number of cache lines: columns are read
// too, and lines of one column must not share a cache set.
inline constexpr int64_t kScorePadding = 16;

// For tiles, whose sums are read and written at a third of the speed of a product: longer ones. P
// and dS are 384 KiB, the operands 448 and dK and dV 256 KiB at head dim 128: half of an L2 cache
// of 2 MiB.
inline constexpr GradientShape kTileGradientShape = {
    .rows_per_group = kRowsPerTileGroup, .queries = 256, .keys = 256};

// Columns of packed operands are padded to panels of every instruction set.
inline constexpr int64_t kOperandColumns = 64;

// Rows of gradients are padded to dim and dim_v, multiples of 16 columns. Operands are packed by
// load_keys and load_queries, in floats or in pairs of bfloat16, padded with zeros.
struct GradientTile {
  int64_t head_dim = 0, head_dim_v = 0;
  int64_t dim = 0, dim_v = 0;
  float scale = 1.0f;
  float softcap = 0.0f;  // 0 = off

  // Whole row groups. Padding rows are zero and see nothing: their LSE is +inf, as is that of every
  // row without a key.
  int64_t num_queries = 0;
  float* q = nullptr;                  // floats: (queries, dim)
  float* d_o = nullptr;                // floats: (queries, dim_v)
  const float* lse = nullptr;          // (queries)
  const float* delta = nullptr;        // (queries)
  const KeyRange* row_keys = nullptr;  // (queries): of the tile's keys; begins, ends never decrease
  const MaskRow* mask = nullptr;       // (queries), besides; null: no block mask
  DropoutJob dropout;                  // its rows are the queries

  int64_t first_key = 0;  // of the sequence's
  int64_t num_keys = 0;
  float* k = nullptr;   // floats: (keys, dim)
  float* kt = nullptr;  // floats: panels of (head_dim, keys)
  float* vt = nullptr;  // floats: panels of (head_dim_v, keys)

  float* p = nullptr;   // floats: (queries, keys + kScorePadding)
  float* ds = nullptr;  // floats: (queries, keys + kScorePadding)

  // Sums that the tile is added to, without the factor `scale`.
  float* dq = nullptr;  // (queries, dim)
  float* dk = nullptr;  // (keys, dim)
  float* dv = nullptr;  // (keys, dim_v)
};

// Rows of an operand in the caller's memory.
struct OperandRows {
  const void* data = nullptr;
  int64_t row_stride = 0;
  int64_t count = 0;
  int64_t dim = 0;
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
  bool add = false;  // to what is there
};

}  // namespace fa3::cpu
