// SPDX-License-Identifier: Apache-2.0
//
// The forward's two products on tiles (tile.h), in place of the micro-kernel's: groups of 32 rows,
// whose scores pass through memory, since no vector instruction reads a tile. Packed keys and values
// are the same pairs of bfloat16 as vdpbf16ps takes. Next: attend_block.h.
#pragma once

#include "engine/cpu/simd/softmax.h"
#include "engine/cpu/simd/tile.h"

namespace fa3::cpu::FA3_ISA {

// Pairs of bfloat16, 32 along a sum at a time.
struct Bf16Tiles : Bf16Pairs {
  static constexpr int kRows = kRowsPerTileGroup;
  static constexpr int kSumMultiple = kTileDepth;
};

static_assert(kRowsPerTileGroup == kTileRows);

template <class Format>
concept OnTiles = Format::kRows == kTileRows;

// The scores of a row group with one panel of keys, in slices: half a panel and 32 columns of the
// head dim each. So the vector units work on another panel while the tiles work on this one.
struct ScoreProduct {
  const float* q;  // (kTileRows, q_floats)
  int64_t q_floats;
  const float* k;  // (depth, kPanel)
  int64_t num_steps;
  float* scores;  // (kTileRows, score_floats)
  int64_t score_floats;

  int64_t num_slices() const { return 2 * num_steps; }
};

FA3_INLINE void multiply_slice(const ScoreProduct& product, int64_t slice) {
  const int64_t half = slice >= product.num_steps;
  const int64_t step = slice - half * product.num_steps;
  const int64_t key = half * kTileRows;
  if (step == 0) zero_sums<2>();
  multiply_tiles<2>(product.q + step * kTileSide, product.q_floats,
                    product.k + step * kTileSide * kPanel + key, kPanel);
  if (step == product.num_steps - 1) store_sums<2>(product.scores + key, product.score_floats);
}

FA3_INLINE ScoreProduct score_product(const BlockJob& job, const Tile& tile, const RowGroup& group,
                                      int64_t key, float* scores, int64_t score_floats) {
  const int64_t depth = depth_of<Bf16Tiles>(job.head_dim);
  return {.q = group.q,
          .q_floats = packed_q_stride(job),
          .k = tile.k + key * depth,
          .num_steps = depth / kTileSide,
          .scores = scores,
          .score_floats = score_floats};
}

// The scores of each panel in turn: visit(key, row, vectors) for the group's rows.
template <class Visit>
FA3_INLINE void each_score_row(const BlockJob& job, const Tile& tile, const RowGroup& group,
                               Panels panels, Visit&& visit) {
  const auto product_of = [&](int64_t key) {
    float* const scores = job.buffers.scores + (key - panels.begin) % (2 * kPanel) * kTileRows;
    return score_product(job, tile, group, key, scores, kPanel);
  };
  ScoreProduct next = product_of(panels.begin);
  for (int64_t i = 0; i < next.num_slices(); ++i) multiply_slice(next, i);
  const int64_t rows_per_slice = (kTileRows + next.num_slices() - 1) / next.num_slices();
  for (int64_t key = panels.begin; key < panels.end; key += kPanel) {
    const float* const scores = next.scores;
    const bool is_last = key + kPanel >= panels.end;
    if (!is_last) next = product_of(key + kPanel);
    int64_t row = 0;
    for (int64_t i = 0; i < next.num_slices(); ++i) {
      if (!is_last) multiply_slice(next, i);
      PrefetchRows::one(tile.next_k);
      PrefetchRows::one(tile.next_v);
      const int64_t end = smaller((i + 1) * rows_per_slice, group.num_rows);
      for (; row < end; ++row) {
        V vectors[kPanelVectors];
        FA3_UNROLL
        for (int j = 0; j < kPanelVectors; ++j) {
          vectors[j] = load(scores + row * kPanel + j * kWidth);
        }
        visit(key, row, vectors);
      }
    }
  }
}

template <OnTiles Format>
static unsigned guarded_softmax(const BlockJob& job, const Tile& tile, const RowGroup& group,
                                Panels panels) {
  const int64_t p_stride = job.block_k / Format::kStep;
  const GuardedConstants constants = {.scale = job.scale * kLog2E, .polynomial = {}};
  V sums[kTileRows] = {}, rounded[kTileRows] = {};
  each_score_row(job, tile, group, panels, [&](int64_t key, int64_t r, V(&row)[kPanelVectors]) {
    guarded_weights(constants, group.ref + r, row, sums[r]);
    Format::store_p(job.buffers.p + r * p_stride + key / Format::kStep, row, rounded[r]);
  });
  unsigned failed = 0;
  for (int64_t r = 0; r < group.num_rows; ++r) {
    if (!keep_sums<Format>(group, r, sums[r], rounded[r])) failed |= 1u << r;
  }
  return failed;
}

template <OnTiles Format>
static void ordinary_softmax(const BlockJob& job, const Tile& tile, const RowGroup& group,
                             Panels panels, unsigned rows) {
  for (int64_t key = panels.begin; key < panels.end; key += kPanel) {
    const ScoreProduct product =
        score_product(job, tile, group, key, job.buffers.scores + key, job.block_k);
    for (int64_t i = 0; i < product.num_slices(); ++i) multiply_slice(product, i);
  }
  for (int64_t r = 0; r < group.num_rows; ++r) {
    if (rows >> r & 1) softmax_row<Format>(job, group, r, tile.begin, panels);
  }
}

template <OnTiles Format>
static void accumulate_values(const BlockJob& job, const Tile& tile, const RowGroup& group,
                              int64_t begin, int64_t end) {
  const int64_t row_pairs = job.block_k / Format::kStep;
  add_tile_product({job.buffers.p + begin / 2, row_pairs}, tile.v + begin / 2 * kPanel,
                   row_pairs * kPanel, end - begin, group.o, job.result.columns);
}

}  // namespace fa3::cpu::FA3_ISA
