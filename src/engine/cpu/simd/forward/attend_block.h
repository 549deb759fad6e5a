// SPDX-License-Identifier: Apache-2.0
//
// Tiled attention of one block of query rows: the loop of the paper (FlashAttention-2,
// arXiv 2307.08691, Algorithm 1) with rows in groups, so that the scores of a group stay in
// registers and L1. A key tile is packed once and used by every group of the block. Next:
// attend_rows.h.
#pragma once

#include "engine/cpu/simd/forward/softmax.h"
#include "engine/cpu/simd/vector/dequantize.h"
#if defined(FA3_TILES)
#include "engine/cpu/simd/amx/tile_products.h"
#endif

namespace fa3::cpu::FA3_ISA {

template <class Format>
FA3_INLINE RowGroup row_group(const BlockJob& job, int64_t index) {
  const int64_t row = index * Format::kRows;
  return {.num_rows = smaller(Format::kRows, job.num_rows - row),
          .q = job.buffers.q + row * packed_q_stride(job),
          .row_keys = job.row_keys + row,
          .visible = job.group_keys[index].visible,
          .free = job.group_keys[index].free,
          .o = job.result.o + row * job.result.columns,
          .ref = job.result.ref + row,
          .sum_lanes = job.buffers.sum_lanes + row * kWidth,
          .divisor_lanes = job.buffers.divisor_lanes + row * kWidth,
          .largest = job.buffers.largest == nullptr ? nullptr : job.buffers.largest + row,
          .dropout = job.dropout.rows == nullptr ? nullptr : job.dropout.rows + row,
          .mask = job.mask_rows == nullptr ? nullptr : job.mask_rows + row};
}

// O += P V for `C` vectors of columns, over the tile's keys [begin, end).
template <class Format, int C>
FA3_INLINE void multiply_values(const BlockJob& job, const float* v_panel, int64_t begin,
                                int64_t end, float* o) {
  const int64_t first = begin / Format::kStep;
  const int64_t columns = job.result.columns;
  V acc[kRowsPerGroup][C];
  FA3_UNROLL
  for (int r = 0; r < kRowsPerGroup; ++r) {
    FA3_UNROLL
    for (int j = 0; j < C; ++j) acc[r][j] = load(o + r * columns + j * kWidth);
  }
  multiply<Format>(job.buffers.p + first, job.block_k / Format::kStep, 1, v_panel + first * kPanel,
                   kPanel, (end - begin + Format::kStep - 1) / Format::kStep, acc);
  FA3_UNROLL
  for (int r = 0; r < kRowsPerGroup; ++r) {
    FA3_UNROLL
    for (int j = 0; j < C; ++j) store(o + r * columns + j * kWidth, acc[r][j]);
  }
}

template <class Format>
static void accumulate_values(const BlockJob& job, const Tile& tile, const RowGroup& group,
                              int64_t begin, int64_t end) {
  const int64_t panel_floats = job.block_k / Format::kStep * kPanel;
  const float* v_panel = tile.v;
  for (int64_t column = 0; column < job.head_dim_v; column += kPanel, v_panel += panel_floats) {
    float* o = group.o + column;
    switch (smaller(kPanelVectors, (job.head_dim_v - column + kWidth - 1) / kWidth)) {
      case 1:
        multiply_values<Format, 1>(job, v_panel, begin, end, o);
        break;
      case 2:
        multiply_values<Format, 2>(job, v_panel, begin, end, o);
        break;
      case 3:
        multiply_values<Format, 3>(job, v_panel, begin, end, o);
        break;
      default:
        multiply_values<Format, kPanelVectors>(job, v_panel, begin, end, o);
        break;
    }
  }
}

// Dropout of a row group's weights.
template <class Format>
static void drop_group(const BlockJob& job, const Tile& tile, const RowGroup& group, Panels keys) {
  const int64_t p_stride = job.block_k / Format::kStep;
  for (int64_t r = 0; r < group.num_rows; ++r) {
    drop_weights<Format>(job.dropout, group.dropout[r], tile.begin + keys.begin,
                         tile.begin + keys.end,
                         job.buffers.p + r * p_stride + keys.begin / Format::kStep);
  }
}

// One row group against the tile's keys [begin, end). `guarded`: every row sees all of them, and
// has seen others before.
template <class Format>
static void attend_keys(const BlockJob& job, const Tile& tile, const RowGroup& group, int64_t begin,
                        int64_t end, bool guarded) {
  if (begin >= end) return;
  const Panels panels = {begin / kPanel * kPanel, (end + kPanel - 1) / kPanel * kPanel};
  const uint32_t rows = guarded ? guarded_softmax<Format>(job, tile, group, panels) : ~0u;
  if (rows != 0) ordinary_softmax<Format>(job, tile, group, panels, rows);
  if (group.dropout != nullptr) drop_group<Format>(job, tile, group, {panels.begin, end});
  accumulate_values<Format>(job, tile, group, begin / Format::kSumMultiple * Format::kSumMultiple,
                            end);
}

// One row group against keys [begin, end) of one packed tile, of which a block mask hides none. The
// ordinary softmax costs more, so it gets only the panels that need it: those at an edge of the
// mask, and one to find the references.
template <class Format>
static void attend_shown_keys(const BlockJob& job, const Tile& tile, const RowGroup& group,
                              int64_t begin, int64_t end) {
  const int64_t free_from = larger(group.free.begin - tile.begin, begin);
  int64_t free_begin = (free_from + kPanel - 1) / kPanel * kPanel;
  int64_t free_end = smaller(group.free.end - tile.begin, end) / kPanel * kPanel;
  if (!has_plain_scores(job) || free_begin >= free_end) free_begin = free_end = end;
  attend_keys<Format>(job, tile, group, begin, free_begin, false);
  if (tile.begin + free_begin == group.free.begin) {
    const int64_t first = smaller(free_begin + kPanel, free_end);
    attend_keys<Format>(job, tile, group, free_begin, first, false);
    free_begin = first;
  }
  attend_keys<Format>(job, tile, group, free_begin, free_end, true);
  attend_keys<Format>(job, tile, group, free_end, end, false);
}

// One row group against one packed tile, block by block of a block mask. Where it has hidden all
// keys before from a row, the guard fires.
template <class Format>
static void attend_tile(const BlockJob& job, const Tile& tile, const RowGroup& group) {
  int64_t begin = larger(group.visible.begin, tile.begin) - tile.begin;
  const int64_t end = smaller(group.visible.end, tile.end) - tile.begin;
  if (begin >= end) return;
  if (group.mask == nullptr) return attend_shown_keys<Format>(job, tile, group, begin, end);
  while (begin < end) {
    const int64_t key = tile.begin + begin;
    const int64_t next = smaller(end, key / kMaskBlock * kMaskBlock + kMaskBlock - tile.begin);
    const Shown shown = shown_to(group.mask, group.num_rows, key);
    if (shown == Shown::kAll) attend_shown_keys<Format>(job, tile, group, begin, next);
    if (shown == Shown::kSome) attend_keys<Format>(job, tile, group, begin, next, false);
    begin = next;
  }
}

// Whether a block mask hides keys [begin, end) from all rows.
FA3_INLINE bool hides_tile(const BlockJob& job, int64_t begin, int64_t end) {
  if (job.mask_rows == nullptr) return false;
  for (int64_t key = begin; key < end; key = key / kMaskBlock * kMaskBlock + kMaskBlock) {
    if (shown_to(job.mask_rows, job.num_rows, key) != Shown::kNothing) return false;
  }
  return true;
}

// Rows start without sums, with the references that `ref_of` gives them.
template <class Format, class RefOf>
FA3_INLINE void start_rows(const BlockJob& job, RefOf&& ref_of) {
  for (int64_t r = 0; r < job.padded_rows; ++r) {
    job.result.ref[r] = ref_of(r);
    if (job.buffers.largest != nullptr) job.buffers.largest[r] = -kInfinity;
    float* o = job.result.o + r * job.result.columns;
    for (int64_t c = 0; c < job.result.columns; c += kWidth) store(o + c, V{});
    store(job.buffers.sum_lanes + r * kWidth, V{});
    if (Format::kRoundsWeights) store(job.buffers.divisor_lanes + r * kWidth, V{});
  }
}

template <class Format>
FA3_INLINE void add_up_sums(const BlockJob& job) {
  for (int64_t r = 0; r < job.padded_rows; ++r) {
    job.result.sum[r] = lanes_sum(load(job.buffers.sum_lanes + r * kWidth));
    job.result.divisor[r] = Format::kRoundsWeights
                                ? lanes_sum(load(job.buffers.divisor_lanes + r * kWidth))
                                : job.result.sum[r];
  }
}

// Whether the rows [begin, end) of o are finite.
FA3_INLINE bool is_finite(const PartialRows& rows, int64_t begin, int64_t end) {
  V zeros = {};  // 0 * inf is NaN
  for (int64_t i = begin * rows.columns; i < end * rows.columns; i += kWidth) {
    zeros += load(rows.o + i) * 0.0f;
  }
  return all_at_most(zeros, 0.0f);
}

// Whether the values that the rows of the block see are, or that are multiplied by zero beside
// them.
template <class Format>
static bool has_finite_values(const BlockJob& job) {
  using T = typename Format::Element;
  const int64_t begin = job.row_keys[0].begin / Format::kSumMultiple * Format::kSumMultiple;
  V zeros = {};
  for (int64_t key = begin; key < job.row_keys[job.num_rows - 1].end; ++key) {
    const T* row = row_of(values_of<T>(job), key);
    for (int64_t c = 0; c < job.head_dim_v; c += kWidth) {
      zeros += load_first(row + c, job.head_dim_v - c) * 0.0f;
    }
  }
  return all_at_most(zeros, 0.0f);
}

// Calls `attend` for jobs whose rows have not seen any key. Sums of weights times values can
// overflow where the mean that they stand for does not: such rows are computed again with their own
// LSE as reference, so that their weights are the probabilities. The others get the same bits
// again.
template <class Format, class Attend>
FA3_INLINE void attend_in_range(const BlockJob* jobs, int64_t num_jobs, Attend&& attend) {
  for (int64_t i = 0; i < num_jobs; ++i) {
    start_rows<Format>(jobs[i], [](int64_t) { return -kInfinity; });
  }
  attend(jobs, num_jobs);
  for (int64_t i = 0; i < num_jobs; ++i) {
    const BlockJob& job = jobs[i];
    add_up_sums<Format>(job);
    if (is_finite(job.result, 0, job.num_rows) || !has_finite_values<Format>(job)) continue;
    start_rows<Format>(job, [&](int64_t r) {
      const float sum = job.result.sum[r];
      const bool overflowed = sum < kInfinity && !is_finite(job.result, r, r + 1);
      return overflowed ? job.result.ref[r] + __builtin_log2f(sum) : -kInfinity;
    });
    attend(&job, 1);
    add_up_sums<Format>(job);
  }
}

template <class Format>
static void pack_tile(const BlockJob& job, int64_t start, int64_t end, int64_t visible_end) {
  if constexpr (kDequantizes<Format>) {
    pack_dequantized(job, start, end);
  } else {
    using T = typename Format::Element;
    const KeyRows<T> k = rows_of(keys_of<T>(job), start, end, visible_end);
    const KeyRows<T> v = rows_of(values_of<T>(job), start, end, visible_end);
    pack_keys<Format>(k.data, k.stride, end - start, job.head_dim, job.buffers.k);
    pack_values<Format>(v.data, v.stride, end - start, job.block_k, job.head_dim_v, job.buffers.v);
  }
}

template <class Format>
static void attend_tiles(const BlockJob& job) {
  using T = typename Format::Element;
  const int64_t num_groups = job.padded_rows / Format::kRows;
  const KeyRange visible = {job.group_keys[0].visible.begin,
                            job.group_keys[num_groups - 1].visible.end};
  for (int64_t start = visible.begin / job.block_k * job.block_k; start < visible.end;
       start += job.block_k) {
    const int64_t end = smaller(start + job.block_k, visible.end);
    if (hides_tile(job, start, end)) continue;
    const int64_t next_end = smaller(end + job.block_k, visible.end);
    PrefetchRows next_k = {}, next_v = {};
    Tile tile = {start, end, job.buffers.k, job.buffers.v, &next_k, &next_v};
    if (job.packed.k != nullptr) {
      const int64_t offset = start / job.block_k * job.packed.stride;
      tile.k = job.packed.k + offset;
      tile.v = job.packed.v + offset;
    } else {
      pack_tile<Format>(job, start, end, visible.end);
      next_k = prefetch_rows(keys_of<T>(job), end, next_end);
      next_v = prefetch_rows(values_of<T>(job), end, next_end);
    }
    for (int64_t g = 0; g < num_groups; ++g)
      attend_tile<Format>(job, tile, row_group<Format>(job, g));
  }
}

template <class Format>
static void attend_block(const BlockJob& job) {
  if constexpr (!kDequantizes<Format>) pack_queries<Format>(job);
  attend_in_range<Format>(&job, 1,
                          [](const BlockJob* jobs, int64_t) { attend_tiles<Format>(*jobs); });
}

}  // namespace fa3::cpu::FA3_ISA
