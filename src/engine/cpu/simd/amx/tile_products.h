// SPDX-License-Identifier: Apache-2.0
//
// The forward's two products on tiles (tile.h), in place of the micro-kernel's: groups of 32 rows,
// whose scores pass through memory, since no vector instruction reads a tile. Packed keys and
// values are the same pairs of bfloat16 as vdpbf16ps takes. Next: attend_block.h.
#pragma once

#include "engine/cpu/simd/amx/tile.h"
#include "engine/cpu/simd/forward/softmax.h"

namespace fa3::cpu::FA3_ISA {

// Pairs of bfloat16, 32 along a sum at a time.
struct Bf16Tiles : Bf16Pairs {
  static constexpr int kRows = kRowsPerTileGroup;
  static constexpr int kPanelColumns = kTileSide;
  static constexpr int kSumMultiple = kTileDepth;
};

static_assert(kRowsPerTileGroup == kTileRows);

// Query rows between two prefetches of the next tile.
constexpr int64_t kRowsPerPrefetch = 4;

template <class Format>
concept OnTiles = Format::kRows == kRowsPerTileGroup;

// The scores of a row group with one panel of keys.
FA3_INLINE void multiply_panel(const BlockJob& job, const Tile& tile, const RowGroup& group,
                               int64_t key, float* scores, int64_t score_floats) {
  const int64_t depth = depth_of<Bf16Tiles>(job.head_dim);
  const float* const keys = tile.k + key * depth;
  for (int64_t column = 0; column < kPanel; column += kTileRows) {
    zero_sums<2>();
    multiply_pairs<2>({group.q, packed_q_stride(job)}, {keys + column * depth, depth * kTileSide},
                      depth);
    store_sums<2>(scores + column, score_floats);
  }
}

template <OnTiles Format>
static uint32_t guarded_softmax(const BlockJob& job, const Tile& tile, const RowGroup& group,
                                Panels panels) {
  const int64_t p_stride = job.block_k / Format::kStep;
  const GuardedConstants constants = {.scale = job.scale * kLog2E, .polynomial = {}};
  V sums[Format::kRows] = {}, rounded[Format::kRows] = {};
  for (int64_t key = panels.begin; key < panels.end; key += kPanel) {
    float* const scores = job.buffers.scores;
    multiply_panel(job, tile, group, key, scores, kPanel);
    for (int64_t r = 0; r < group.num_rows; ++r) {
      if (r % kRowsPerPrefetch == 0) {
        PrefetchRows::one(tile.next_k);
        PrefetchRows::one(tile.next_v);
      }
      V row[kPanelVectors];
      FA3_UNROLL
      for (int j = 0; j < kPanelVectors; ++j) row[j] = load(scores + r * kPanel + j * kWidth);
      guarded_weights(constants, group.ref + r, row, sums[r]);
      Format::store_p(job.buffers.p + r * p_stride + key / Format::kStep, row, rounded[r]);
    }
  }
  uint32_t failed = 0;
  for (int64_t r = 0; r < group.num_rows; ++r) {
    if (!keep_sums<Format>(group, r, sums[r], rounded[r])) failed |= 1u << r;
  }
  return failed;
}

template <OnTiles Format>
static void ordinary_softmax(const BlockJob& job, const Tile& tile, const RowGroup& group,
                             Panels panels, uint32_t rows) {
  for (int64_t key = panels.begin; key < panels.end; key += kPanel) {
    multiply_panel(job, tile, group, key, job.buffers.scores + key, job.block_k);
  }
  for (int64_t r = 0; r < group.num_rows; ++r) {
    if (rows >> r & 1) softmax_row<Format>(job, group, r, tile.begin, panels);
  }
}

template <OnTiles Format>
static void accumulate_values(const BlockJob& job, const Tile& tile, const RowGroup& group,
                              int64_t begin, int64_t end) {
  const int64_t block_pairs = job.block_k / Format::kStep;
  add_tile_product({job.buffers.p + begin / 2, block_pairs},
                   {tile.v + begin / 2 * kTileSide, block_pairs * kTileSide}, end - begin, group.o,
                   job.result.columns);
}

}  // namespace fa3::cpu::FA3_ISA
