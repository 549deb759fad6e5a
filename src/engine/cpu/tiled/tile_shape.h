// SPDX-License-Identifier: Apache-2.0
//
// Block sizes of the tiled forward and the scratch memory they imply, each with its derivation.
// The number of keys depends on the head dims only, so that a result never depends on threads or
// neighbours; that of query rows is free, because rows are computed in fixed groups.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/ceil_div.h"
#include "core/problem.h"
#include "core/workspace.h"
#include "engine/cpu/kernels/block_job.h"
#include "engine/cpu/machine/features.h"

namespace fa3::cpu {

constexpr int64_t round_up(int64_t count, int64_t multiple) {
  return ceil_div(count, multiple) * multiple;
}

// One 64-byte vector: the widest of the instruction sets.
inline constexpr int64_t kMaxLanes = 16;
// Columns of a packed panel: four 64-byte vectors.
inline constexpr int64_t kMaxPanel = 64;
// Output rows are read and written once per tile: 256 keys make that 1% of the work in floats.
inline constexpr int64_t kMaxBlockK = 4 * kMaxPanel;

// A packed key and value tile: a quarter of a 1 MiB L2 cache.
inline constexpr int64_t kTileFloats = (256 << 10) / 4;
// More query rows amortise packing (2 d moves per key, and a page walk where each row of K and V
// has its own page) no further: from 768 to 1368 rows brought 1.5%.
inline constexpr int64_t kMaxBlockQ = 1368;

// Up to here a key head has so few query rows that its keys are split over threads instead.
inline constexpr int64_t kSplitRows = 64;
// Key heads that one task may then take together, of at most kSplitRows rows in all.
inline constexpr int64_t kMaxHeadsTogether = 8;
// Part of the keys that one task takes: long enough that writing and merging a row of O per part is
// under 1% of the reads, and at most kMaxParts of them.
inline constexpr int64_t kMinPartKeys = 512;
inline constexpr int64_t kMaxParts = 64;

struct TileShape {
  int64_t rows_per_group = 0;
  int64_t q_stride = 0;   // floats of a packed query row
  int64_t o_columns = 0;  // floats of an output row
  int64_t v_columns = 0;  // floats of a packed value row
  int64_t block_k = 0;
  // Whole row groups. Fewer rows than the least would spend more on packing than the sharing of
  // work gains; and a sequence whose keys are split must fit into one block.
  int64_t min_block_q = 0, max_block_q = 0;
  bool dequantizes = false;  // keys and values are float8

  // Bytes of the keys and the values of a packed tile, and of both.
  int64_t key_floats() const { return block_k * q_stride; }
  int64_t value_floats() const { return block_k * v_columns; }
  int64_t tile_floats() const { return key_floats() + value_floats(); }
};

// Query rows and their output rows are read again for every tile: they may take 5/8 of the L2
// cache, less where that leaves too little for the tile.
inline int64_t bytes_for_rows() {
  const int64_t l2 = l2_cache_bytes();
  constexpr int64_t kTileBytes = kTileFloats * sizeof(float);
  return std::min(l2 * 5 / 8, l2 * 7 / 8 - kTileBytes);
}

inline TileShape tile_shape(int64_t head_dim, int64_t head_dim_v, GroupShape group = kVectorGroup) {
  TileShape shape;
  shape.rows_per_group = group.rows;
  shape.q_stride = round_up(head_dim, kMaxLanes);
  shape.o_columns = round_up(head_dim_v, kMaxLanes);
  shape.v_columns = round_up(head_dim_v, kMaxPanel);
  const int64_t floats_per_key = shape.q_stride + shape.v_columns;
  // A power of two, at least one panel. Parts of the keys begin at multiples of kMaxBlockK.
  shape.block_k = kMaxBlockK * group.packing;
  while (shape.block_k > kMaxPanel &&
         shape.block_k * floats_per_key > kTileFloats * group.packing) {
    shape.block_k /= 2;
  }
  const int64_t bytes_per_row = (shape.q_stride + shape.o_columns) * 4;
  shape.min_block_q = round_up(kSplitRows, group.rows);
  shape.max_block_q = std::clamp(bytes_for_rows() / bytes_per_row, shape.min_block_q, kMaxBlockQ) /
                      group.rows * group.rows;
  return shape;
}

// Keys of one part of a sequence's `visible_keys`; whole tiles. At most `num_splits` parts, 0: as
// many as pay.
constexpr int64_t part_keys(int64_t visible_keys, int64_t num_splits) {
  const int64_t most = num_splits > 0 ? num_splits : kMaxParts;
  const int64_t least_keys = num_splits > 0 ? kMaxBlockK : kMinPartKeys;
  return std::max(least_keys, round_up((visible_keys + most - 1) / most, kMaxBlockK));
}

constexpr int64_t num_parts(int64_t visible_keys, int64_t num_splits) {
  if (visible_keys <= 0) return 1;
  const int64_t keys = part_keys(visible_keys, num_splits);
  return (visible_keys + keys - 1) / keys;
}

// One part's result in memory.
constexpr int64_t partial_floats(int64_t rows, int64_t o_columns) {
  return round_up(rows * (o_columns + 3), kMaxLanes);
}

inline PartialRows partial_rows(float* memory, int64_t rows, int64_t o_columns) {
  return {.o = memory,
          .ref = memory + rows * o_columns,
          .sum = memory + rows * o_columns + rows,
          .divisor = memory + rows * o_columns + 2 * rows,
          .columns = o_columns};
}

// What one thread needs for blocks of block_q rows.
struct ThreadScratch {
  BlockBuffers buffers;
  float* partial = nullptr;
  KeyRange* row_keys = nullptr;
  DropoutRowPart* dropout = nullptr;
  MaskRow* mask = nullptr;
  BlockRange* group_keys = nullptr;
};

inline ThreadScratch carve_thread(const TileShape& shape, const Problem& problem, int64_t block_q,
                                  WorkspaceAllocator& allocator) {
  ThreadScratch thread;
  BlockBuffers& buffers = thread.buffers;
  if (shape.dequantizes) {
    buffers.rows = allocator.take<float>(kMaxPanel, std::max(shape.q_stride, shape.o_columns));
  }
  // Rows of heads that are taken together may become the columns of whole vectors.
  buffers.q =
      allocator.take<float>(std::max(block_q, kMaxHeadsTogether * kMaxLanes), shape.q_stride);
  buffers.k = allocator.take<float>(shape.key_floats());
  buffers.v = allocator.take<float>(shape.value_floats());
  if (problem.key_places.paged()) {
    buffers.gathered_k = allocator.take<float>(shape.block_k, problem.head_dim);
    buffers.gathered_v = allocator.take<float>(shape.block_k, problem.head_dim_v);
  }
  const int64_t score_rows = std::max(shape.rows_per_group, kVectorGroup.stream_rows);
  buffers.scores = allocator.take<float>(score_rows, shape.block_k);
  buffers.p = allocator.take<float>(score_rows, shape.block_k);
  buffers.sum_lanes = allocator.take<float>(block_q, kMaxLanes);
  buffers.divisor_lanes = allocator.take<float>(block_q, kMaxLanes);
  if (problem.max_logit.on) buffers.largest = allocator.take<float>(block_q);
  thread.partial = allocator.take<float>(partial_floats(block_q, shape.o_columns) +
                                         kMaxHeadsTogether * kMaxLanes);
  thread.row_keys = allocator.take<KeyRange>(block_q);
  if (problem.dropout.on()) thread.dropout = allocator.take<DropoutRowPart>(block_q);
  if (problem.block_mask.on) thread.mask = allocator.take<MaskRow>(block_q);
  thread.group_keys = allocator.take<BlockRange>(block_q / shape.rows_per_group);
  return thread;
}

}  // namespace fa3::cpu
