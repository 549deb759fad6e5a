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

#include "engine/cpu/simd/backward/gradient_operands.h"
#include "engine/cpu/simd/vector/block_mask.h"
#include "engine/cpu/simd/vector/exp2.h"

namespace fa3::cpu::FA3_ISA {

// A row group against one panel of keys, from `key` on, with what is needed beside dP.
struct ScorePanel {
  int64_t row, key;
  bool free;  // every row sees every key
  alignas(64) float p[kRowsPerGroup][kPanel];
  alignas(64) float slope[kRowsPerGroup][kPanel];  // of the softcap
};

template <class Format>
FA3_INLINE void multiply_operands(const float* queries, const float* keys, int64_t dim,
                                  const ScorePanel& panel, V (&acc)[kRowsPerGroup][kPanelVectors]) {
  const int64_t stride = left_stride<Format>(dim), depth = depth_of<Format>(dim);
  multiply<Format>(queries + panel.row * stride, stride, 1, keys + panel.key * depth, kPanel, depth,
                   acc);
}

// S, then P.
template <class Format, bool kCapped>
FA3_INLINE void recompute_weights(const GradientTile& tile, ScorePanel& panel) {
  V acc[kRowsPerGroup][kPanelVectors] = {};
  multiply_operands<Format>(tile.q, tile.kt, tile.head_dim, panel, acc);
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
        store(panel.slope[r] + j * kWidth, 1.0f - t * t);
      }
      store(panel.p[r] + j * kWidth, probability(score, lse, polynomial));
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

// All ones where a row sees a key of [key, key + kWidth), else zero.
FA3_INLINE VInt seen_keys(KeyRange visible, int64_t key) {
  const VInt keys = lane_numbers() + static_cast<int32_t>(key);
  return (keys >= static_cast<int32_t>(visible.begin)) & (keys < static_cast<int32_t>(visible.end));
}

// P and dS of row r and a vector of keys from the panel's key `from` on.
template <bool kCapped, bool kDropped>
FA3_INLINE void finish_vector(const GradientTile& tile, const ScorePanel& panel,
                              const KeptKeys& keep, int64_t r, int64_t from, V dp, V& p, V& ds) {
  p = load(panel.p[r] + from);
  VBits kept = {};
  if (kDropped) {
    kept = load_mask(keep.mask[r] + panel.key - keep.first + from);
    dp = (V)((VBits)(dp * broadcast_from(&tile.dropout.scale)) & kept);
  }
  dp -= broadcast_from(tile.delta + panel.row + r);
  ds = p * dp;
  if (kCapped) ds *= load(panel.slope[r] + from);
  if (kDropped) p = (V)((VBits)p & kept);
  if (panel.free) return;
  VInt seen = seen_keys(tile.row_keys[panel.row + r], panel.key + from);
  if (tile.mask != nullptr) {
    seen &= shown_keys(tile.mask[panel.row + r], tile.first_key + panel.key + from);
  }
  p = (V)((VInt)p & seen);
  ds = (V)((VInt)ds & seen);
}

// dP, then dS, which is stored with P.
template <class Format, bool kCapped, bool kDropped>
FA3_INLINE void recompute_score_gradients(const GradientTile& tile, const ScorePanel& panel,
                                          const KeptKeys& keep) {
  V acc[kRowsPerGroup][kPanelVectors] = {};
  multiply_operands<Format>(tile.d_o, tile.vt, tile.head_dim_v, panel, acc);
  FA3_UNROLL
  for (int square = 0; square < kRowsPerGroup * kPanelVectors / 4; ++square) {
    const int row = square / (kPanelVectors / 2) * 2, vector = square % (kPanelVectors / 2) * 2;
    V p[2][2], ds[2][2];
    FA3_UNROLL
    for (int i = 0; i < 2; ++i) {
      FA3_UNROLL
      for (int j = 0; j < 2; ++j) {
        finish_vector<kCapped, kDropped>(tile, panel, keep, row + i, (vector + j) * kWidth,
                                         acc[row + i][vector + j], p[i][j], ds[i][j]);
      }
    }
    store_square<Format>(tile, panel.row + row, panel.key + vector * kWidth, p, ds);
  }
}

template <class Format>
static void clear_panel(const GradientTile& tile, int64_t row, int64_t key) {
  for (int64_t r = 0; r < kRowsPerGroup; r += 2) {
    for (int64_t j = 0; j < kPanel; j += 2 * kWidth) {
      store_square<Format>(tile, row + r, key + j, {}, {});
    }
  }
}

template <class Format, bool kCapped, bool kDropped>
static void recompute_panel(const GradientTile& tile, int64_t row, int64_t key,
                            const KeptKeys& keep) {
  const KeyRange first = tile.row_keys[row];
  const KeyRange last = tile.row_keys[row + kRowsPerGroup - 1];
  const Shown shown = tile.mask == nullptr
                          ? Shown::kAll
                          : shown_to(tile.mask + row, kRowsPerGroup, tile.first_key + key);
  if (last.end <= key || key + kPanel <= first.begin || shown == Shown::kNothing) {
    return clear_panel<Format>(tile, row, key);
  }
  ScorePanel panel;
  panel.row = row;
  panel.key = key;
  panel.free = shown == Shown::kAll && last.begin <= key && key + kPanel <= first.end;
  recompute_weights<Format, kCapped>(tile, panel);
  recompute_score_gradients<Format, kCapped, kDropped>(tile, panel, keep);
}

// c (kRowsPerGroup, columns) += a b, whose rows have `stride` elements.
template <class Format, int C>
FA3_INLINE void add_columns(LeftFactor a, const float* b, int64_t stride, int64_t depth, float* c) {
  V acc[kRowsPerGroup][C];
  FA3_UNROLL
  for (int r = 0; r < kRowsPerGroup; ++r) {
    FA3_UNROLL
    for (int j = 0; j < C; ++j) acc[r][j] = load(c + r * stride + j * kWidth);
  }
  multiply<Format>(a.data, a.row, a.step, b, stride, depth, acc);
  FA3_UNROLL
  for (int r = 0; r < kRowsPerGroup; ++r) {
    FA3_UNROLL
    for (int j = 0; j < C; ++j) store(c + r * stride + j * kWidth, acc[r][j]);
  }
}

// b and c have rows of `columns`, a multiple of 16.
template <class Format>
static void add_product(LeftFactor a, const float* b, int64_t columns, int64_t depth, float* c) {
  int64_t column = 0;
  for (; column + kPanel <= columns; column += kPanel) {
    add_columns<Format, kPanelVectors>(a, b + column, columns, depth, c + column);
  }
  for (; column < columns; column += kWidth) {
    add_columns<Format, 1>(a, b + column, columns, depth, c + column);
  }
}

// dQ += dS K, for every row group over the keys that it sees.
template <class Format>
static void add_query_gradients(const GradientTile& tile) {
  for (int64_t row = 0; row < tile.num_queries; row += kRowsPerGroup) {
    const int64_t begin = tile.row_keys[row].begin / Format::kStep;
    const int64_t end = depth_of<Format>(tile.row_keys[row + kRowsPerGroup - 1].end);
    if (begin >= end) continue;
    add_product<Format>(rows_of_ds<Format>(tile, row, begin), tile.k + begin * tile.dim, tile.dim,
                        end - begin, tile.dq + row * tile.dim);
  }
}

// dV += P^T dO and dK += dS^T Q, for every group of keys over the queries that see it.
template <class Format>
static void add_key_gradients(const GradientTile& tile) {
  const float* const d_o = right_of_queries<Format>(tile.d_o, tile.dim_v);
  const float* const q = right_of_queries<Format>(tile.q, tile.dim);
  int64_t first = 0, last = 0;
  for (int64_t key = 0; key < tile.num_keys; key += kRowsPerGroup) {
    while (first < tile.num_queries && tile.row_keys[first].end <= key) ++first;
    while (last < tile.num_queries && tile.row_keys[last].begin < key + kRowsPerGroup) ++last;
    if (first >= last) continue;
    const int64_t begin = first / Format::kStep, depth = depth_of<Format>(last) - begin;
    add_product<Format>(columns_of<Format>(tile.p, key, begin), d_o + begin * tile.dim_v,
                        tile.dim_v, depth, tile.dv + key * tile.dim_v);
    add_product<Format>(columns_of<Format>(tile.ds, key, begin), q + begin * tile.dim, tile.dim,
                        depth, tile.dk + key * tile.dim);
  }
}

template <class Format, bool kCapped, bool kDropped>
static void recompute_tile(const GradientTile& tile) {
  // With dropout a row group goes through as many keys as its masks are made for.
  constexpr int64_t kKeys = kDropped && kDropoutKeys > kPanel ? kDropoutKeys : kPanel;
  KeptKeys keep;
  for (int64_t first = 0; first < tile.num_keys; first += kKeys) {
    for (int64_t row = 0; row < tile.num_queries; row += kRowsPerGroup) {
      if (kDropped) KeptKeys::make(keep, tile, row, first);
      for (int64_t key = first; key < smaller(first + kKeys, tile.num_keys); key += kPanel) {
        recompute_panel<Format, kCapped, kDropped>(tile, row, key, keep);
      }
    }
  }
}

template <class Format>
static void add_gradients(const GradientTile& tile) {
  const bool dropped = tile.dropout.rows != nullptr;
  if (tile.softcap > 0.0f) {
    (dropped ? recompute_tile<Format, true, true> : recompute_tile<Format, true, false>)(tile);
  } else {
    (dropped ? recompute_tile<Format, false, true> : recompute_tile<Format, false, false>)(tile);
  }
  add_query_gradients<Format>(tile);
  add_key_gradients<Format>(tile);
}

// As floats, padded with zeros to 16 columns.
template <class T>
static void load_row(const void* data, int64_t dim, float* to) {
  const T* row = static_cast<const T*>(data);
  for (int64_t c = 0; c < (dim + 15) / 16 * 16; c += kWidth) {
    store(to + c, c < dim ? load_first(row + c, dim - c) : V{});
  }
}

constexpr GradientKernels kFloatGradients = {
    .shape = kFloatGradientShape,
    .load_keys = {load_keys<Floats<float>>, load_keys<Floats<Float16>>,
                  load_keys<Floats<BFloat16>>},
    .load_q = {load_q<Floats<float>>, load_q<Floats<Float16>>, load_q<Floats<BFloat16>>},
    .load_d_o = {load_d_o<Floats<float>>, load_d_o<Floats<Float16>>, load_d_o<Floats<BFloat16>>},
    .add = add_gradients<Floats<float>>,
};

#if defined(FA3_PAIRS)
constexpr GradientKernels kPairGradients = {
    .shape = kPairGradientShape,
    .load_keys = {nullptr, nullptr, load_keys<Bf16Pairs>},
    .load_q = {nullptr, nullptr, load_q<Bf16Pairs>},
    .load_d_o = {nullptr, nullptr, load_d_o<Bf16Pairs>},
    .add = add_gradients<Bf16Pairs>,
};
#endif

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
      sum *= job.factor;
      if (job.add) sum += load_first(out + c, job.dim - c);
      store_first(out + c, sum, job.dim - c);
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
