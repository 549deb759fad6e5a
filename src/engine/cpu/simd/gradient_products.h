// SPDX-License-Identifier: Apache-2.0
//
// The five products of the backward pass for one tile, FlashAttention-3's Algorithm 3:
//
//   S = Q K^T    P = exp(scale S - LSE)      dP = dO V^T    dS = P (dP - D)
//   dV += P^T dO       dK += dS^T Q       dQ += dS K
//
// With dropout, dP and the P of dV are masked; dP is scaled here, dV where it is stored. All go
// through the forward's micro-kernel. The first two have rows of queries and panels of keys, and
// leave P and dS in memory; the others read those by rows (dQ) or by columns (dK, dV), which to a
// micro-kernel that broadcasts its left factor is a matter of strides, so nothing is transposed.
#pragma once

#include "engine/cpu/kernels.h"
#include "engine/cpu/simd/dropout.h"
#include "engine/cpu/simd/exp2.h"

namespace fa3::cpu::FA3_ISA {

// A row group against one panel of keys, from `key` on.
struct ScorePanel {
  int64_t row, key;
  float* p;
  float* ds;
};

// S, then P. With a softcap its slope goes to where dS will be.
template <bool kCapped>
FA3_INLINE void recompute_weights(const GradientTile& tile, const ScorePanel& panel) {
  V acc[kRowsPerGroup][kPanelVectors] = {};
  multiply<Floats<float>>(tile.q + panel.row * tile.dim, tile.dim, 1,
                          tile.kt + panel.key * tile.head_dim, kPanel, tile.head_dim, acc);
  const Exp2Polynomial constants;
  const Exp2Polynomial& polynomial = reread(constants);
  FA3_UNROLL
  for (int r = 0; r < kRowsPerGroup; ++r) {
    const V lse = broadcast_from(tile.lse + panel.row + r);
    FA3_UNROLL
    for (int j = 0; j < kPanelVectors; ++j) {
      V score = acc[r][j] * broadcast_from(&tile.scale);
      if (kCapped) {
        const V t = cap_fraction(acc[r][j], tile.scale, tile.softcap);
        score = t * tile.softcap;
        store(panel.ds + r * kScoreStride + j * kWidth, 1.0f - t * t);
      }
      store(panel.p + r * kScoreStride + j * kWidth, exp2((score - lse) * kLog2E, polynomial));
    }
  }
}

// The masks of a row group and kDropoutKeys keys.
struct KeptKeys {
  alignas(64) uint32_t mask[kRowsPerGroup][kCallKeys + 2 * kDropoutKeys];
  int64_t first = 0;  // of the tile's keys

  FA3_INLINE void make(KeptKeys& kept, const GradientTile& tile, int64_t row, int64_t key) {
    const int64_t before = (tile.first_key + key) % kCallKeys;
    kept.first = key - before;
    for (int64_t r = 0; r < kRowsPerGroup; ++r) {
      keep_mask(tile.dropout, tile.dropout.rows[row + r], tile.first_key + kept.first,
                before + kDropoutKeys, kept.mask[r]);
    }
  }
};

// dP, then dS; with dropout, P is masked after it.
template <bool kCapped, bool kDropped>
FA3_INLINE void recompute_score_gradients(const GradientTile& tile, const ScorePanel& panel,
                                          const KeptKeys& keep) {
  V acc[kRowsPerGroup][kPanelVectors] = {};
  multiply<Floats<float>>(tile.d_o + panel.row * tile.dim_v, tile.dim_v, 1,
                          tile.vt + panel.key * tile.head_dim_v, kPanel, tile.head_dim_v, acc);
  FA3_UNROLL
  for (int r = 0; r < kRowsPerGroup; ++r) {
    const V delta = broadcast_from(tile.delta + panel.row + r);
    FA3_UNROLL
    for (int j = 0; j < kPanelVectors; ++j) {
      const int64_t at = r * kScoreStride + j * kWidth;
      const V p = load(panel.p + at);
      V dp = acc[r][j];
      if (kDropped) {
        const VBits kept = load_mask(keep.mask[r] + panel.key - keep.first + j * kWidth);
        dp = (V)((VBits)(dp * broadcast_from(&tile.dropout.scale)) & kept);
        store(panel.p + at, (V)((VBits)p & kept));
      }
      dp -= delta;
      V ds = p * dp;
      if (kCapped) ds *= load(panel.ds + at);
      store(panel.ds + at, ds);
    }
  }
}

// Zeros where a row of the group does not see a key of the panel.
FA3_INLINE void hide_keys(const GradientTile& tile, const ScorePanel& panel) {
  const VInt lanes = lane_numbers();
  for (int r = 0; r < kRowsPerGroup; ++r) {
    const KeyRange visible = tile.row_keys[panel.row + r];
    const auto begin = static_cast<int32_t>(visible.begin - panel.key);
    const auto end = static_cast<int32_t>(visible.end - panel.key);
    FA3_UNROLL
    for (int j = 0; j < kPanelVectors; ++j) {
      const VInt key = lanes + j * kWidth;
      const VInt seen = (key >= begin) & (key < end);
      const int64_t at = r * kScoreStride + j * kWidth;
      store(panel.p + at, (V)((VInt)load(panel.p + at) & seen));
      store(panel.ds + at, (V)((VInt)load(panel.ds + at) & seen));
    }
  }
}

template <bool kCapped, bool kDropped>
static void recompute_panel(const GradientTile& tile, const ScorePanel& panel,
                            const KeptKeys& keep) {
  const KeyRange first = tile.row_keys[panel.row];
  const KeyRange last = tile.row_keys[panel.row + kRowsPerGroup - 1];
  const bool hidden = last.end <= panel.key || panel.key + kPanel <= first.begin;
  const bool free = last.begin <= panel.key && panel.key + kPanel <= first.end;
  if (!hidden) {
    recompute_weights<kCapped>(tile, panel);
    recompute_score_gradients<kCapped, kDropped>(tile, panel, keep);
  }
  if (!free) hide_keys(tile, panel);
}

// c (kRowsPerGroup, columns) += sum_i a[r * row + i * step] b[i][column].
struct LeftFactor {
  const float* data;
  int64_t row, step;
};

template <int C>
FA3_INLINE void add_columns(LeftFactor a, const float* b, int64_t stride, int64_t depth, float* c) {
  V acc[kRowsPerGroup][C];
  FA3_UNROLL
  for (int r = 0; r < kRowsPerGroup; ++r) {
    FA3_UNROLL
    for (int j = 0; j < C; ++j) acc[r][j] = load(c + r * stride + j * kWidth);
  }
  multiply<Floats<float>>(a.data, a.row, a.step, b, stride, depth, acc);
  FA3_UNROLL
  for (int r = 0; r < kRowsPerGroup; ++r) {
    FA3_UNROLL
    for (int j = 0; j < C; ++j) store(c + r * stride + j * kWidth, acc[r][j]);
  }
}

// b and c have rows of `columns`, a multiple of 16.
static void add_product(LeftFactor a, const float* b, int64_t columns, int64_t depth, float* c) {
  int64_t column = 0;
  for (; column + kPanel <= columns; column += kPanel) {
    add_columns<kPanelVectors>(a, b + column, columns, depth, c + column);
  }
  for (; column < columns; column += kWidth) {
    add_columns<1>(a, b + column, columns, depth, c + column);
  }
}

// dQ += dS K, for every row group over the keys that it sees.
static void add_query_gradients(const GradientTile& tile) {
  for (int64_t row = 0; row < tile.num_queries; row += kRowsPerGroup) {
    const int64_t begin = tile.row_keys[row].begin;
    const int64_t end = tile.row_keys[row + kRowsPerGroup - 1].end;
    if (begin >= end) continue;
    add_product({tile.ds + row * kScoreStride + begin, kScoreStride, 1}, tile.k + begin * tile.dim,
                tile.dim, end - begin, tile.dq + row * tile.dim);
  }
}

// dV += P^T dO and dK += dS^T Q, for every group of keys over the queries that see it.
static void add_key_gradients(const GradientTile& tile) {
  int64_t begin = 0, end = 0;
  for (int64_t key = 0; key < tile.num_keys; key += kRowsPerGroup) {
    while (begin < tile.num_queries && tile.row_keys[begin].end <= key) ++begin;
    while (end < tile.num_queries && tile.row_keys[end].begin < key + kRowsPerGroup) ++end;
    if (begin >= end) continue;
    const int64_t at = begin * kScoreStride + key;
    add_product({tile.p + at, 1, kScoreStride}, tile.d_o + begin * tile.dim_v, tile.dim_v,
                end - begin, tile.dv + key * tile.dim_v);
    add_product({tile.ds + at, 1, kScoreStride}, tile.q + begin * tile.dim, tile.dim, end - begin,
                tile.dk + key * tile.dim);
  }
}

template <bool kDropped>
static void recompute_tile(const GradientTile& tile) {
  // With dropout a row group goes through as many keys as its masks are made for.
  constexpr int64_t kKeys = kDropped && kDropoutKeys > kPanel ? kDropoutKeys : kPanel;
  KeptKeys keep;
  for (int64_t first = 0; first < tile.num_keys; first += kKeys) {
    for (int64_t row = 0; row < tile.num_queries; row += kRowsPerGroup) {
      if (kDropped) KeptKeys::make(keep, tile, row, first);
      for (int64_t key = first; key < smaller(first + kKeys, tile.num_keys); key += kPanel) {
        const int64_t at = row * kScoreStride + key;
        const ScorePanel panel = {row, key, tile.p + at, tile.ds + at};
        (tile.softcap > 0.0f ? recompute_panel<true, kDropped>
                             : recompute_panel<false, kDropped>)(tile, panel, keep);
      }
    }
  }
}

static void add_gradients(const GradientTile& tile) {
  (tile.dropout.rows == nullptr ? recompute_tile<false> : recompute_tile<true>)(tile);
  add_query_gradients(tile);
  add_key_gradients(tile);
}

// As floats, padded with zeros to 16 columns.
template <class T>
static void load_row(const void* data, int64_t dim, float* to) {
  const T* row = static_cast<const T*>(data);
  for (int64_t c = 0; c < (dim + 15) / 16 * 16; c += kWidth) {
    store(to + c, c < dim ? load_first(row + c, dim - c) : V{});
  }
}

// The rows as floats, padded to whole groups of rows and to 16 columns with zeros.
template <class T>
static void load_rows(OperandRows rows, float* to) {
  const int64_t columns = (rows.dim + 15) / 16 * 16;
  const int64_t padded = (rows.count + kRowsPerGroup - 1) / kRowsPerGroup * kRowsPerGroup;
  for (int64_t r = 0; r < padded; ++r) {
    const T* row = static_cast<const T*>(rows.data) + r * rows.row_stride;
    for (int64_t c = 0; c < columns; c += kWidth) {
      const bool exists = r < rows.count && c < rows.dim;
      store(to + r * columns + c, exists ? load_first(row + c, rows.dim - c) : V{});
    }
  }
}

template <class T>
static void load_panels(OperandRows rows, float* to) {
  pack_keys<Floats<T>>(static_cast<const T*>(rows.data), rows.row_stride, rows.count, rows.dim, to);
}

template <class T>
static void load_keys(const GradientTile& tile, OperandRows k, OperandRows v) {
  load_rows<T>(k, tile.k);
  load_panels<T>(k, tile.kt);
  load_panels<T>(v, tile.vt);
}

template <class T>
static void load_q(const GradientTile& tile, OperandRows q) {
  load_rows<T>(q, tile.q);
}

template <class T>
static void load_d_o(const GradientTile& tile, OperandRows d_o) {
  load_rows<T>(d_o, tile.d_o);
}

constexpr GradientKernels kFloatGradients = {
    .shape = kFloatGradientShape,
    .load_keys = {load_keys<float>, load_keys<Float16>, load_keys<BFloat16>},
    .load_q = {load_q<float>, load_q<Float16>, load_q<BFloat16>},
    .load_d_o = {load_d_o<float>, load_d_o<Float16>, load_d_o<BFloat16>},
    .add = add_gradients,
};

template <class T>
static void store_gradient(const GradientRows& job) {
  const int64_t columns = (job.dim + 15) / 16 * 16;
  for (int64_t r = 0; r < job.rows; ++r) {
    T* out = static_cast<T*>(job.out) + r * job.out_stride;
    for (int64_t c = 0; c < job.dim; c += kWidth) {
      V sum = {};
      for (int64_t i = 0; i < job.num_parts; ++i) {
        sum += load(job.parts + i * job.part_stride + r * columns + c);
      }
      store_first(out + c, sum * job.factor, job.dim - c);
    }
  }
}

// sums[r] = a[r] . b[r], over rows of `dim` elements.
template <class T>
static void dot_rows(const void* a, int64_t a_stride, const void* b, int64_t b_stride, int64_t rows,
                     int64_t dim, float* sums) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* x = static_cast<const T*>(a) + r * a_stride;
    const T* y = static_cast<const T*>(b) + r * b_stride;
    V sum = {};
    for (int64_t c = 0; c < dim; c += kWidth) {
      sum += load_first(x + c, dim - c) * load_first(y + c, dim - c);
    }
    sums[r] = lanes_sum(sum);
  }
}

static void exp2_in_place(float* x, int64_t count) {
  for (int64_t i = 0; i < count; i += kWidth) store(x + i, exp2(load(x + i)));
}

}  // namespace fa3::cpu::FA3_ISA
