// SPDX-License-Identifier: Apache-2.0
//
// The backward's five products on tiles (tile.h), 32 keys by 32 queries at a time. Scores are
// computed with the keys as rows, S^T = K Q^T: so P^T and dS^T are at once the left factors of
//
//   dV += P^T dO       dK += dS^T Q       dQ += dS K
//
// and only dS has to be transposed, in pairs. Compare gradient_products.h, which has them in
// floats. Here the buffers of a tile hold pairs of bfloat16:
//
//   q, d_o    (head dim, queries) as the right factor of scores, then (queries, head dim) as that
//   of
//             gradients
//   k, vt     (keys, head dim), left factors of scores
//   kt        (keys, head dim), the right factor of dQ
//   p         P^T (keys, queries)
//   ds        dS^T (keys, queries), then dS (queries, keys)
#pragma once

#include "engine/cpu/simd/amx/tile_products.h"
#include "engine/cpu/simd/backward/gradient_products.h"

namespace fa3::cpu::FA3_ISA {

constexpr int64_t kGradientQueries = kTileGradientShape.queries;
constexpr int64_t kGradientKeys = kTileGradientShape.keys;
constexpr int64_t kGroup = kTileGradientShape.rows_per_group;
static_assert(kGroup == kTileRows);

// Floats of a row of P^T and dS^T, and of dS.
constexpr int64_t kQueryPairs = kGradientQueries / 2;
constexpr int64_t kKeyPairs = kGradientKeys / 2;

// Rows as a right factor that is added up over the rows.
static void pack_right_tiles(OperandRows rows, int64_t block, float* to) {
  pack_values<Bf16Tiles>(static_cast<const BFloat16*>(rows.data), rows.row_stride, rows.count,
                         block, rows.dim, to);
}

static void load_key_tiles(const GradientTile& tile, OperandRows k, OperandRows v) {
  pack_left<Bf16Tiles>(k, tile.k);
  pack_left<Bf16Tiles>(v, tile.vt);
  pack_right_tiles(k, kGradientKeys, tile.kt);
}

// Both right factors of a buffer of queries.
static void pack_query_tiles(OperandRows rows, float* to) {
  pack_keys<Bf16Tiles>(static_cast<const BFloat16*>(rows.data), rows.row_stride, rows.count,
                       rows.dim, to);
  pack_right_tiles(rows, kGradientQueries, to + half_of_queries(kTileGradientShape, rows.dim));
}

static void load_q_tiles(const GradientTile& tile, OperandRows q) {
  pack_query_tiles(q, tile.q);
}

static void load_d_o_tiles(const GradientTile& tile, OperandRows d_o) {
  pack_query_tiles(d_o, tile.d_o);
}

// A group of queries and a group of keys, by their first rows.
struct GradientBlock {
  int64_t query, key;
};

FA3_INLINE bool is_hidden(const GradientTile& tile, GradientBlock block) {
  return tile.row_keys[block.query + kGroup - 1].end <= block.key ||
         block.key + kGroup <= tile.row_keys[block.query].begin;
}

FA3_INLINE bool is_free(const GradientTile& tile, GradientBlock block) {
  return tile.row_keys[block.query + kGroup - 1].begin <= block.key &&
         block.key + kGroup <= tile.row_keys[block.query].end;
}

// product (kGroup, kGroup) = left right.
FA3_INLINE void multiply_group(const float* left, const float* right, int64_t depth,
                               float* product) {
  zero_sums<2>();
  multiply_pairs<2>({left, depth}, {right, depth * kTileSide}, depth);
  store_sums<2>(product, kGroup);
}

// What one vector of queries needs to turn scores into P and dS.
struct QueryVector {
  V lse, delta;
  VInt begin, end;  // of the keys that a query sees

  FA3_INLINE QueryVector at(const GradientTile& tile, int64_t query) {
    QueryVector queries = {.lse = load(tile.lse + query), .delta = load(tile.delta + query)};
    FA3_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      queries.begin[i] = static_cast<int32_t>(tile.row_keys[query + i].begin);
      queries.end[i] = static_cast<int32_t>(tile.row_keys[query + i].end);
    }
    return queries;
  }
};

// What a block mask shows of the block.
FA3_INLINE Shown shown_of(const GradientTile& tile, GradientBlock block) {
  if (tile.mask == nullptr) return Shown::kAll;
  return shown_to(tile.mask + block.query, kGroup, tile.first_key + block.key);
}

// All ones where it shows a pair: (keys, queries).
static void shown_block(const GradientTile& tile, GradientBlock block, int32_t* shown) {
  static_assert(kGroup == 32);  // a word's keys
  for (int64_t query = 0; query < kGroup; ++query) {
    const uint32_t word = mask_word(tile.mask[block.query + query], tile.first_key + block.key);
    for (int64_t key = 0; key < kGroup; ++key) {
      shown[key * kGroup + query] = word >> key & 1 ? -1 : 0;
    }
  }
}

// Zeros where a block mask hides the block: sums may go through it.
static void clear_block(const GradientTile& tile, GradientBlock block) {
  float* const ds = tile.ds + kGradientKeys * kQueryPairs + block.query * kKeyPairs + block.key / 2;
  for (int64_t i = 0; i < kGroup; ++i) {
    const int64_t at = (block.key + i) * kQueryPairs + block.query / 2;
    store(tile.p + at, V{});
    store(tile.ds + at, V{});
    store(ds + i * kKeyPairs, V{});
  }
}

// What a block keeps under dropout: (keys, queries).
struct KeepBlock {
  const uint32_t* mask;

  FA3_INLINE VBits at(const KeepBlock& keep, int64_t key, int64_t query) {
    return load_mask(keep.mask + key * kGroup + query);
  }
};

static void keep_block(const GradientTile& tile, GradientBlock block, uint32_t* mask) {
  static_assert(kGroup == 2 * kWidth && kCallKeys % kGroup == 0);
  const int64_t first_key = tile.first_key + block.key, before = first_key % kCallKeys;
  for (int64_t query = 0; query < kGroup; query += kWidth) {
    V first[kWidth], second[kWidth];
    for (int i = 0; i < kWidth; ++i) {
      alignas(64) uint32_t keep[kDropoutKeys];
      keep_mask(tile.dropout, tile.dropout.rows[block.query + query + i], first_key - before,
                kCallKeys, keep);
      first[i] = (V)load_mask(keep + before);
      second[i] = (V)load_mask(keep + before + kWidth);
    }
    transpose(first);
    transpose(second);
    for (int i = 0; i < kWidth; ++i) {
      __builtin_memcpy(mask + i * kGroup + query, &first[i], sizeof(V));
      __builtin_memcpy(mask + (kWidth + i) * kGroup + query, &second[i], sizeof(V));
    }
  }
}

// P and dS of one key and a vector of queries, from products with Q and dO.
template <bool kCapped, bool kFree, bool kDropped>
FA3_INLINE void weights_and_gradients(const GradientTile& tile, const QueryVector& queries,
                                      int64_t key, VBits keep, VInt shown, V& product,
                                      V& gradient) {
  V slope = {};
  V score = product * broadcast_from(&tile.scale);
  if (kCapped) {
    const V t = cap_fraction(product, tile.scale, tile.softcap);
    score = t * tile.softcap;
    slope = 1.0f - t * t;
  }
  V p = probability(score, queries.lse, Exp2Polynomial{});
  if (kDropped) gradient = (V)((VBits)(gradient * broadcast_from(&tile.dropout.scale)) & keep);
  V ds = p * (gradient - queries.delta);
  if (kDropped) p = (V)((VBits)p & keep);
  if (kCapped) ds *= slope;
  if (!kFree) {
    const auto number = static_cast<int32_t>(key);
    const VInt seen = (queries.begin <= number) & (number < queries.end) & shown;
    p = (V)((VInt)p & seen);
    ds = (V)((VInt)ds & seen);
  }
  product = p;
  gradient = ds;
}

// From products of one block to its part of P^T, dS^T and dS.
template <bool kCapped, bool kFree, bool kDropped>
static void finish_block(const GradientTile& tile, GradientBlock block, KeepBlock keep,
                         const int32_t* mask, const float* products, const float* gradients) {
  constexpr int kVectors = kGroup / kWidth;
  float* const p = tile.p + block.key * kQueryPairs + block.query / 2;
  float* const ds_t = tile.ds + block.key * kQueryPairs + block.query / 2;
  float* const ds = tile.ds + kGradientKeys * kQueryPairs + block.query * kKeyPairs + block.key / 2;
  QueryVector queries[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    queries[j] = QueryVector::at(tile, block.query + j * kWidth);
  }
  V ds_pairs[kVectors][kWidth];
  for (int64_t key = 0; key < kGroup; key += 2) {
    V p_rows[2][kVectors], ds_rows[2][kVectors];
    FA3_UNROLL
    for (int r = 0; r < 2; ++r) {
      FA3_UNROLL
      for (int j = 0; j < kVectors; ++j) {
        const int64_t at = (key + r) * kGroup + j * kWidth;
        p_rows[r][j] = load(products + at);
        ds_rows[r][j] = load(gradients + at);
        const VBits kept = kDropped ? KeepBlock::at(keep, key + r, j * kWidth) : VBits{};
        VInt shown = ~VInt{};
        if (!kFree && mask != nullptr) __builtin_memcpy(&shown, mask + at, sizeof(shown));
        weights_and_gradients<kCapped, kFree, kDropped>(tile, queries[j], block.key + key + r, kept,
                                                        shown, p_rows[r][j], ds_rows[r][j]);
      }
      store(p + (key + r) * kQueryPairs, Bf16Tiles::row_pairs(p_rows[r][0], p_rows[r][1]));
      store(ds_t + (key + r) * kQueryPairs, Bf16Tiles::row_pairs(ds_rows[r][0], ds_rows[r][1]));
    }
    FA3_UNROLL
    for (int j = 0; j < kVectors; ++j) {
      ds_pairs[j][key / 2] = Bf16Tiles::column_pairs(ds_rows[0][j], ds_rows[1][j]);
    }
  }
  for (int j = 0; j < kVectors; ++j) {
    transpose(ds_pairs[j]);
    for (int i = 0; i < kWidth; ++i) store(ds + (j * kWidth + i) * kKeyPairs, ds_pairs[j][i]);
  }
}

template <bool kDropped>
static void recompute_block(const GradientTile& tile, GradientBlock block) {
  alignas(64) float products[kGroup * kGroup], gradients[kGroup * kGroup];
  const auto multiply = [&](const float* keys, const float* queries, int64_t dim, float* to) {
    const int64_t depth = depth_of<Bf16Tiles>(dim);
    multiply_group(keys + block.key * depth, queries + block.query * depth, depth, to);
  };
  multiply(tile.k, tile.q, tile.head_dim, products);
  multiply(tile.vt, tile.d_o, tile.head_dim_v, gradients);
  alignas(64) uint32_t mask[kDropped ? kGroup * kGroup : 1];
  if (kDropped) keep_block(tile, block, mask);
  const KeepBlock keep = {mask};
  alignas(64) int32_t shown[kGroup * kGroup];
  const bool in_part = shown_of(tile, block) == Shown::kSome,
             free = !in_part && is_free(tile, block);
  if (in_part) shown_block(tile, block, shown);
  const int32_t* const bits = in_part ? shown : nullptr;
  if (tile.softcap > 0.0f) {
    (free ? finish_block<true, true, kDropped>
          : finish_block<true, false, kDropped>)(tile, block, keep, bits, products, gradients);
  } else {
    (free ? finish_block<false, true, kDropped>
          : finish_block<false, false, kDropped>)(tile, block, keep, bits, products, gradients);
  }
}

// dV += P^T dO and dK += dS^T Q, for each group of keys over the queries that see it.
static void add_key_gradient_tiles(const GradientTile& tile) {
  for (int64_t key = 0; key < tile.num_keys; key += kGroup) {
    int64_t begin = 0;
    while (begin < tile.num_queries && is_hidden(tile, {begin, key})) begin += kGroup;
    int64_t end = begin;
    while (end < tile.num_queries && !is_hidden(tile, {end, key})) end += kGroup;
    const auto add = [&](const float* left, const float* right, int64_t dim, float* to) {
      add_tile_product({left + key * kQueryPairs + begin / 2, kQueryPairs},
                       {right + half_of_queries(kTileGradientShape, dim) + begin / 2 * kTileSide,
                        kQueryPairs * kTileSide},
                       end - begin, to, (dim + 15) / 16 * 16);
    };
    if (begin == end) continue;
    add(tile.p, tile.d_o, tile.head_dim_v, tile.dv + key * tile.dim_v);
    add(tile.ds, tile.q, tile.head_dim, tile.dk + key * tile.dim);
  }
}

// dQ += dS K, for each group of queries over the keys that it sees.
static void add_query_gradient_tiles(const GradientTile& tile) {
  const float* ds = tile.ds + kGradientKeys * kQueryPairs;
  for (int64_t query = 0; query < tile.num_queries; query += kGroup) {
    const int64_t begin = tile.row_keys[query].begin / kGroup * kGroup;
    const int64_t end = tile.row_keys[query + kGroup - 1].end;
    if (begin >= end) continue;
    add_tile_product({ds + query * kKeyPairs + begin / 2, kKeyPairs},
                     {tile.kt + begin / 2 * kTileSide, kKeyPairs * kTileSide}, end - begin,
                     tile.dq + query * tile.dim, tile.dim);
  }
}

static void add_tile_gradients(const GradientTile& tile) {
  const auto recompute =
      tile.dropout.rows == nullptr ? recompute_block<false> : recompute_block<true>;
  configure_tiles();
  for (int64_t query = 0; query < tile.num_queries; query += kGroup) {
    for (int64_t key = 0; key < tile.num_keys; key += kGroup) {
      if (is_hidden(tile, {query, key})) continue;
      (shown_of(tile, {query, key}) == Shown::kNothing ? clear_block : recompute)(tile,
                                                                                  {query, key});
    }
  }
  add_query_gradient_tiles(tile);
  add_key_gradient_tiles(tile);
  release_tiles();
}

constexpr GradientKernels kTileGradients = {
    .shape = kTileGradientShape,
    .load_keys = {nullptr, nullptr, load_key_tiles},
    .load_q = {nullptr, nullptr, load_q_tiles},
    .load_d_o = {nullptr, nullptr, load_d_o_tiles},
    .add = add_tile_gradients,
};

}  // namespace fa3::cpu::FA3_ISA
