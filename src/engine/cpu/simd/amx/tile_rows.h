// SPDX-License-Identifier: Apache-2.0
//
// Attention of a few query rows on tiles: a group's queries that share the keys of a long cache.
// Keys are the left factor, K Q^T, so that tiles of them are loaded from where they lie, in any
// order of memory; only the scores, 16 a key, are transposed. Values are interleaved by twos on the
// way into the right factor of P V. The rest is softmax.h's. Next: write_rows.h.
#pragma once

#include "engine/cpu/simd/amx/tile_products.h"
#include "engine/cpu/simd/forward/attend_rows.h"

namespace fa3::cpu::FA3_ISA {

static_assert(kChunk == kPanel);  // one panel of scores

// Where fewer rows share the keys, vectors keep up with memory, and round no weight.
constexpr int64_t kFewestRowsOnTiles = 5;

// A chunk's value columns, 32 at a time: a tile of the even ones, and one of the odd ones.
constexpr int64_t kValueTileFloats = kChunk / 2 * kTileSide;

// Rows of the chunk after this one, asked for in small steps in every phase: all of them in one
// phase was slower, though here up to a quarter are left to the hardware's own prefetching.
struct NextRows {
  PrefetchRows k, v;

  FA3_INLINE void one(NextRows& rows) {
    PrefetchRows::one(&rows.k);
    PrefetchRows::one(&rows.v);
  }
};

// Query rows to right factors (depth, 16 queries), zeros past the last one.
static void pack_query_columns(const BlockJob& job) {
  const int64_t depth = depth_of<Bf16Tiles>(job.head_dim);
  float* to = job.buffers.q;
  for (int64_t first = 0; first < job.num_rows; first += kTileSide) {
    for (int64_t i = 0; i < depth; i += kTileSide, to += kTileSide * kTileSide) {
      V rows[kTileSide];
      for (int64_t r = 0; r < kTileSide; ++r) {
        rows[r] = first + r < job.num_rows
                      ? Bf16Tiles::load_row(query_row<BFloat16>(job, first + r), i, job.head_dim)
                      : V{};
      }
      transpose(rows);
      for (int64_t r = 0; r < kTileSide; ++r) store(to + r * kTileSide, rows[r]);
    }
  }
}

// A chunk of keys or values whose rows tiles can be loaded from. Where they would reach beyond the
// rows, or cannot begin at each of them, rows are copied, with zeros around them.
FA3_INLINE LeftRows whole_rows(const KeyRows<BFloat16>& rows, int64_t count, int64_t dim,
                               float* copy) {
  if (count == kChunk && dim % kTileDepth == 0 && rows.stride % 2 == 0) {
    return {reinterpret_cast<const float*>(rows.data), rows.stride / 2};
  }
  const int64_t depth = depth_of<Bf16Tiles>(dim);
  for (int64_t r = 0; r < kChunk; ++r) {
    for (int64_t i = 0; i < depth; i += kWidth) {
      store(copy + r * depth + i,
            r < count ? Bf16Tiles::load_row(rows.data + r * rows.stride, i, dim) : V{});
    }
  }
  return {copy, depth};
}

// Values as right factors.
static void pack_value_pairs(const LeftRows& values, int64_t depth, float* to, NextRows& next) {
  for (int64_t key = 0; key < kChunk; key += 2, to += kTileSide) {
    NextRows::one(next);
    const float* const row = values.data + key * values.row_floats;
    for (int64_t i = 0; i < depth; i += kTileSide) {
      const auto first = (VBits)load(row + i), second = (VBits)load(row + values.row_floats + i);
      float* const pairs = to + i / kTileSide * (2 * kValueTileFloats);
      store(pairs, (V)((first & 0xffffu) | second << 16));
      store(pairs + kValueTileFloats, (V)(first >> 16 | (second & 0xffff0000u)));
    }
  }
}

// scores[r][key] = q[r] . keys[key], for 16 query rows whose columns begin at `q`.
static void multiply_chunk(const BlockJob& job, const LeftRows& keys, const float* q,
                           int64_t num_rows, NextRows& next) {
  const int64_t depth = depth_of<Bf16Tiles>(job.head_dim);
  for (int64_t key = 0; key < kChunk; key += kTileRows) {
    alignas(64) float sums[kTileRows * kTileSide];
    zero_sums<1>();
    for (int64_t i = 0; i < depth; i += kTileSide) {
      NextRows::one(next);
      multiply_tiles<1>({keys.data + key * keys.row_floats + i, keys.row_floats},
                        {q + i * kTileSide, 0});
    }
    store_sums<1>(sums, kTileSide);
    for (int64_t half = 0; half < kTileRows; half += kTileSide) {
      V columns[kTileSide];
      FA3_UNROLL
      for (int i = 0; i < kTileSide; ++i) columns[i] = load(sums + (half + i) * kTileSide);
      transpose(columns);
      for (int64_t r = 0; r < num_rows; ++r) {
        store(job.buffers.scores + r * job.block_k + key + half, columns[r]);
      }
    }
  }
}

// Row r's scores to P: the guarded step, where the row sees the whole chunk. A row that has seen no
// key yet fails the guard.
FA3_INLINE void weigh_chunk(const BlockJob& job, const RowGroup& group, int64_t r, int64_t begin) {
  const KeyRange seen = group.row_keys[r];
  if (has_plain_scores(job) && seen.begin <= begin && begin + kChunk <= seen.end) {
    const GuardedConstants constants = {.scale = job.scale * kLog2E, .polynomial = {}};
    V row[kPanelVectors], sums = {}, rounded = {};
    FA3_UNROLL
    for (int j = 0; j < kPanelVectors; ++j) {
      row[j] = load(job.buffers.scores + r * job.block_k + j * kWidth);
    }
    guarded_weights(constants, group.ref + r, row, sums);
    Bf16Tiles::store_p(job.buffers.p + r * (job.block_k / 2), row, rounded);
    if (keep_sums<Bf16Tiles>(group, r, sums, rounded)) return;
  }
  softmax_row<Bf16Tiles>(job, group, r, begin, {0, kChunk});
}

// O += P V.
static void add_chunk_of_values(const BlockJob& job, const RowGroup& group, NextRows& next) {
  const int64_t columns = job.result.columns;
  const float* values = job.buffers.v;
  for (int64_t c = 0; c < columns; c += kTileDepth, values += 2 * kValueTileFloats) {
    alignas(64) float sums[kTileSide * kTileDepth];
    NextRows::one(next);
    zero_sums<2, 1>();
    multiply_pairs<2, 1>({job.buffers.p, job.block_k / 2}, {values, kValueTileFloats}, kChunk / 2);
    store_sums<2, 1>(sums, kTileDepth);
    for (int64_t r = 0; r < group.num_rows; ++r) {
      const V even = load(sums + r * kTileDepth), odd = load(sums + r * kTileDepth + kTileSide);
      float* const o = group.o + r * columns + c;
      store(o, load(o) + interleave_low(even, odd));
      if (c + kWidth < columns) store(o + kWidth, load(o + kWidth) + interleave_high(even, odd));
    }
  }
}

static void attend_chunk_on_tiles(Chunk chunk, Chunk next_chunk) {
  const BlockJob& job = *chunk.job;
  const int64_t end = job.row_keys[job.num_rows - 1].end;
  const int64_t chunk_end = smaller(chunk.begin + kChunk, end), count = chunk_end - chunk.begin;
  const int64_t next_end = smaller(next_chunk.begin + kChunk, end);
  NextRows next = {prefetch_rows(keys_of<BFloat16>(*next_chunk.job), next_chunk.begin, next_end),
                   prefetch_rows(values_of<BFloat16>(*next_chunk.job), next_chunk.begin, next_end)};
  const int64_t depth_v = depth_of<Bf16Tiles>(job.head_dim_v);
  const LeftRows keys = whole_rows(rows_of(keys_of<BFloat16>(job), chunk.begin, chunk_end, end),
                                   count, job.head_dim, job.buffers.k);
  const LeftRows values = whole_rows(rows_of(values_of<BFloat16>(job), chunk.begin, chunk_end, end),
                                     count, job.head_dim_v, job.buffers.v + kChunk * depth_v);
  pack_value_pairs(values, depth_v, job.buffers.v, next);
  const int64_t query_floats = depth_of<Bf16Tiles>(job.head_dim) * kTileSide;
  for (int64_t row = 0; row < job.num_rows; row += kTileSide) {
    RowGroup group = {};
    group.num_rows = smaller(kTileSide, job.num_rows - row);
    group.row_keys = job.row_keys + row;
    group.o = job.result.o + row * job.result.columns;
    group.ref = job.result.ref + row;
    group.sum_lanes = job.buffers.sum_lanes + row * kWidth;
    group.divisor_lanes = job.buffers.divisor_lanes + row * kWidth;
    if (job.buffers.largest != nullptr) group.largest = job.buffers.largest + row;
    multiply_chunk(job, keys, job.buffers.q + row / kTileSide * query_floats, group.num_rows, next);
    for (int64_t r = 0; r < group.num_rows; ++r) {
      NextRows::one(next);
      weigh_chunk(job, group, r, chunk.begin);
      if (job.dropout.rows == nullptr) continue;
      drop_weights<Bf16Tiles>(job.dropout, job.dropout.rows[row + r], chunk.begin, chunk_end,
                              job.buffers.p + r * (job.block_k / 2));
    }
    add_chunk_of_values(job, group, next);
  }
}

static void attend_rows_on_tiles(const BlockJob* jobs, int64_t num_jobs) {
  if (jobs[0].num_rows < kFewestRowsOnTiles) return attend_rows<BFloat16>(jobs, num_jobs);
  configure_tiles();
  for (int64_t i = 0; i < num_jobs; ++i) pack_query_columns(jobs[i]);
  attend_in_chunks<Bf16Tiles>(jobs, num_jobs, attend_chunk_on_tiles);
  release_tiles();
}

}  // namespace fa3::cpu::FA3_ISA
