// SPDX-License-Identifier: Apache-2.0
// Every forward kernel, each for fp16 and bf16: the whole support matrix on one page. CMake writes
// one source file for each row that is built; plan/select/ chooses the row. Tiles were chosen by
// measurement: docs/lab/hopper.md, fp8.md, decoding.md, dropout.md, masks.md, flex.md.
//
// A tile is a run of rows with the same columns, blocks and operands: its forms. The first form
// that serves a call is taken, so those that offer less, and are faster, come first. Tiles are
// ordered by their columns; of the same columns the first that suits a call's sizes is taken, so
// those with the tightest limits come first.
#pragma once

#include <algorithm>
#include <array>

#include "engine/hopper/kernels/row.h"

namespace fa3::hopper {
namespace catalogue {

// A tile of `rows` queries and `keys` keys, with as many columns of V as of K. `of`: the rest of
// its shape.
constexpr Row tile_of(int columns, int rows, int keys, Shape of, const char* why,
                      const Limits& limits = {}) {
  of.head_dim = of.head_dim_v = columns;
  of.block_m = rows;
  of.block_n = keys;
  return {.kernel = {.shape = of}, .limits = limits, .why = why};
}
constexpr Row with_v(Row row, int columns) {
  row.kernel.shape.head_dim_v = columns;
  return row;
}
constexpr Row at_cost(double row_cost, Row row) {
  row.row_cost = row_cost;
  return row;
}
constexpr Row with(Weights weights, Row row) {
  row.kernel.weights = weights;
  return row;
}
constexpr Row quantized(Row row) {
  row.kernel.operands = Operands::kQuantizedCache;
  return row;
}

// A split tile's Q is loaded after its first K: the room of another one is the pipeline's.
constexpr Row in(Tiles tiles, Row row, Scores scores = Scores::kScaled) {
  row.kernel.tiles = tiles;
  row.kernel.scores = scores;
  Shape& shape = row.kernel.shape;
  if (row.kernel.can_split() && shape.q_stages > 1) {
    const TileShapes smem = row.kernel.tiles_in_smem();
    shape.kv_stages += (shape.q_stages - 1) * smem.q_bytes() / smem.stage_bytes();
    shape.q_stages = 1;
  }
  return row;
}

constexpr auto alone(const Row& row) {
  return std::array{row};
}
// All masks and lengths; softcap too.
constexpr auto varlen_and_capped(const Row& tile) {
  return std::array{in(Tiles::kVarlen, tile), in(Tiles::kVarlen, tile, Scores::kCapped)};
}
constexpr auto split_and_capped(const Row& tile) {
  return std::array{in(Tiles::kSplit, tile), in(Tiles::kSplit, tile, Scores::kCapped)};
}
// The form for sequences of one length stands in front of the others.
constexpr auto in_three_forms(const Row& tile) {
  return join(alone(in(Tiles::kDense, tile)), varlen_and_capped(tile));
}
constexpr auto splitting(const Row& tile) {
  return join(alone(in(Tiles::kDense, tile)), split_and_capped(tile));
}
constexpr auto dense_and_varlen(const Row& tile) {
  if (tile.kernel.block_mask()) {
    return std::array{in(Tiles::kListed, tile), in(Tiles::kListedVarlen, tile)};
  }
  return std::array{in(Tiles::kDense, tile), in(Tiles::kVarlen, tile)};
}

// A form that only decodes.
constexpr Row decoding(Row tile) {
  tile.why = tile.kernel.consumers() == 1
                 ? "few query rows: nothing but decoding in the kernel"
                 : "a tile for each sequence: nothing but decoding in the kernel";
  return in(Tiles::kStreamK, tile);
}
constexpr auto with_stream_k(const Row& tile) {
  return join(alone(in(Tiles::kDense, tile)), alone(decoding(tile)), split_and_capped(tile));
}
// Over a quantized cache: no dense form.
constexpr auto of_cache(const Row& tile) {
  return join(alone(decoding(tile)), split_and_capped(tile));
}

// Goes on from a result over other keys, or writes O in float32. Without such a result other
// kernels have more tiles to choose from, until sequences are long.
constexpr auto continued(Row tile) {
  tile.kernel.sum = Sum::kContinued;
  auto [dense, varlen] = dense_and_varlen(tile);
  dense.only_for = {Need::kPartial, Need::kFloat32Out};
  dense.limits.least_keys = 1536;
  varlen.only_for = {Need::kPartial};
  return std::array{dense, varlen};
}

// A kernel that is compiled at run time with a score function of these kinds.
constexpr auto at_run_time(Row tile, Needs kinds, int64_t least_keys = 0) {
  tile.built = false;
  tile.score_kinds = kinds | Needs{Need::kScoreFunction};
  tile.limits = {.least_keys = least_keys};
  return dense_and_varlen(tile);
}

// For few query rows: one sequence, of which each split has a cluster; several sequences. `stages`:
// of each warp, in the kernel for several; 0: that one has no room for any. A stage has keys / 8
// rows of K or of V.
struct DecodeTile {
  int head_dim, rows, keys, stages;
  bool cache = false;
};
constexpr Row decoding(Tiles tiles, const DecodeTile& t, Needs kinds) {
  return {.kernel = {.shape = {.head_dim = t.head_dim,
                               .head_dim_v = t.head_dim,
                               .block_m = t.rows,
                               .block_n = t.keys,
                               .kv_stages = t.stages,
                               .ping_pong = false},
                     .operands = t.cache ? Operands::kQuantizedCache : Operands::k16Bit,
                     .tiles = tiles},
          .score_kinds = kinds.empty() ? kinds : kinds | Needs{Need::kScoreFunction},
          .built = kinds.empty(),
          .why = "few query rows: each warp reads keys of its own"};
}
constexpr auto one_sequence_alone(const DecodeTile& t, Needs kinds = {}) {
  return alone(decoding(Tiles::kDecodeSingle, t, kinds));
}
constexpr auto one_or_several_sequences(const DecodeTile& t, Needs kinds = {}) {
  return std::array{decoding(Tiles::kDecodeSingle, t, kinds), decoding(Tiles::kDecode, t, kinds)};
}

constexpr auto decode_rows(Needs kinds = {}) {
  return join(one_or_several_sequences({64, 8, 256, 6}, kinds),
              one_or_several_sequences({128, 8, 128, 5}, kinds),
              one_or_several_sequences({128, 16, 128, 4}, kinds),
              one_or_several_sequences({256, 8, 128, 2}, kinds),
              one_sequence_alone({256, 16, 128, 0}, kinds),
              one_or_several_sequences({64, 8, 512, 6, true}, kinds),
              one_or_several_sequences({64, 16, 256, 8, true}, kinds),
              one_or_several_sequences({128, 8, 256, 5, true}, kinds),
              one_or_several_sequences({128, 16, 128, 8, true}, kinds),
              one_or_several_sequences({256, 8, 128, 4, true}, kinds),
              one_sequence_alone({256, 16, 128, 0, true}, kinds));
}

inline constexpr Needs kSimpleScores{Need::kScorePure, Need::kScoreLine, Need::kScoreKeyTerm};
inline constexpr Needs kMovingScores{Need::kScoreTwoLines, Need::kScoreRun, Need::kScoreClampedRun};
inline constexpr Needs kAllScores =
    kSimpleScores | kMovingScores | Needs{Need::kScoreTile, Need::kScoreOther};
inline constexpr int64_t kManyKeys = 12288;  // from here on three warpgroups gain at 128 columns

inline constexpr const char* kThreeShareSoftmax =
    "softmax is the bottleneck at 64 columns: three warpgroups share it";
inline constexpr const char* kThreeKeepTensorCoresBusy =
    "three warpgroups keep the tensor cores busy";
inline constexpr const char* kFewQueries =
    "few queries: memory is the bottleneck, two CTAs an SM hold what is on its way";
inline constexpr const char* kFewLongQueries =
    "few queries: memory is the bottleneck, the pipeline holds what is on its way";
inline constexpr const char* kTileEach =
    "many sequences of a tile each: several CTAs an SM hide the latencies";
inline constexpr const char* kOneQBuffer =
    "two warpgroups; one Q buffer, so that the pipeline keeps five stages";
inline constexpr const char* kDequantizers =
    "two warpgroups leave registers for those that dequantize keys";
inline constexpr const char* kLongTiles =
    "few queries: a step takes long, so tiles are long; two CTAs an SM hold what comes";
inline constexpr const char* kDraws = "two warpgroups have registers for the draws";
inline constexpr const char* kFunction = "two warpgroups have registers for the score function";
inline constexpr const char* kAllMasks = "masks and lengths of all kinds";

// ---- Tiles by their columns ----

inline constexpr Row k64x192 = tile_of(64, 192, 128, {.kv_stages = 8}, kThreeShareSoftmax);
inline constexpr auto kRows64 =
    join(continued(k64x192),
         varlen_and_capped(tile_of(
             64, 64, 32, {.q_stages = 2, .kv_stages = 4, .ctas_per_sm = 3, .ping_pong = false},
             kTileEach, {.most_keys = 64, .most_rows = 512})),
         with_stream_k(tile_of(64, 64, 128, {.kv_stages = 6, .ctas_per_sm = 2, .ping_pong = false},
                               kFewQueries, {.most_rows = 64})),
         // The cost is for want of a third warpgroup.
         with_stream_k(at_cost(
             1.25, tile_of(64, 128, 128, {.q_stages = 2, .kv_stages = 8},
                           "where tiles of 192 rows are too few for the SMs, and to split them",
                           {.most_keys = 0}))),
         in_three_forms(k64x192));

inline constexpr auto kRows96 =
    in_three_forms(tile_of(96, 192, 96, {.kv_stages = 8, .ping_pong = false},
                           "three warpgroups, as many keys a step as their registers hold"));

inline constexpr Row k128x192 = tile_of(128, 192, 80, {.kv_stages = 8}, kThreeKeepTensorCoresBusy);
inline constexpr auto kRows128 = join(
    continued(k128x192),
    varlen_and_capped(tile_of(128, 64, 32,
                              {.q_stages = 2, .kv_stages = 4, .ctas_per_sm = 2, .ping_pong = false},
                              kTileEach, {.most_keys = 64, .most_rows = 512})),
    with_stream_k(tile_of(128, 64, 64, {.kv_stages = 5, .ctas_per_sm = 2, .ping_pong = false},
                          kFewQueries, {.most_rows = 64})),
    with_stream_k(at_cost(
        1.1, tile_of(128, 128, 128, {.q_stages = 2, .kv_stages = 5},
                     "short sequences: 192 rows are too coarse a grain", {.most_keys = 1535}))),
    in_three_forms(k128x192));

inline constexpr Row k192By128 = with_v(tile_of(192, 128, 112, {.kv_stages = 4}, kOneQBuffer), 128);
inline constexpr Row k192 = tile_of(192, 128, 80, {.kv_stages = 5}, kOneQBuffer);
inline constexpr Row k256 = tile_of(256, 128, 64, {.kv_stages = 5}, kOneQBuffer);
inline constexpr auto kRows256 =
    join(with_stream_k(tile_of(256, 64, 64, {.kv_stages = 6, .ping_pong = false}, kFewLongQueries,
                               {.most_rows = 64})),
         with_stream_k(k256));

// ---- Quantized caches: K and V have half the bytes, so half as many wait in shared memory ----

inline constexpr auto kCacheRows = [] {
  const Shape long_tiles = {
      .kv_stages = 3, .loaded_stages = 3, .ctas_per_sm = 2, .ping_pong = false};
  Shape more_loaded = long_tiles;
  more_loaded.loaded_stages = 5;
  const Limits few_rows = {.most_rows = 64};
  return join(
      of_cache(quantized(tile_of(64, 64, 144, more_loaded, kLongTiles, few_rows))),
      split_and_capped(
          quantized(tile_of(64, 128, 128, {.kv_stages = 6, .loaded_stages = 6}, kDequantizers))),
      of_cache(quantized(tile_of(128, 64, 80, long_tiles, kLongTiles, few_rows))),
      split_and_capped(
          quantized(tile_of(128, 128, 128, {.kv_stages = 4, .loaded_stages = 4}, kDequantizers))),
      of_cache(
          quantized(tile_of(256, 64, 64, {.kv_stages = 4, .loaded_stages = 4, .ping_pong = false},
                            kFewLongQueries, few_rows))),
      split_and_capped(
          quantized(tile_of(256, 128, 64, {.kv_stages = 3, .loaded_stages = 4}, kDequantizers))));
}();

constexpr Row in_varlen_capped(const Row& row) {
  return in(Tiles::kVarlen, row, Scores::kCapped);
}

// ---- e4m3: a form for one length and at most a causal mask, another for all the rest ----

// V comes in rows, and the kernel transposes it again for each tile of rows, 4 to 25% of a tile's
// time, but nothing goes before its tiles: for keys that few rows see. Up to 128 columns tiles
// without a mask leave SMs idle for long enough.
constexpr auto transposing(Row tile, Needs only_for) {
  tile.kernel.operands = Operands::kE4m3RowsOfV;
  tile.limits = {.most_keys = 1535, .most_rows_of_key = 512};
  tile.only_for = only_for;
  tile.why = "short sequences, whose V is transposed in the kernel";
  return alone(tile);
}
constexpr Row e4m3_of(int columns, int rows, int keys, int stages, const char* why,
                      const Limits& limits = {}) {
  Row row = tile_of(columns, rows, keys, {.kv_stages = stages, .ping_pong = false}, why, limits);
  row.kernel.operands = Operands::kE4m3;
  row.kernel.sum = Sum::kPromoted;
  return row;
}
inline constexpr Row kE4m3Of128 = e4m3_of(
    128, 128, 128, 8, "short sequences: 192 keys are too coarse a grain", {.most_keys = 1535});
inline constexpr Row kE4m3Of256 =
    e4m3_of(256, 128, 128, 4, "two warpgroups; the earlier parts of O leave room for four stages");
inline constexpr auto kE4m3Rows =
    join(alone(e4m3_of(64, 192, 128, 8, "softmax is the bottleneck: three warpgroups share it")),
         alone(in_varlen_capped(
             e4m3_of(64, 128, 128, 8,
                     "masks and lengths of all kinds; two warpgroups, whose registers hold them"))),
         transposing(kE4m3Of128, {Need::kMasked}), alone(kE4m3Of128),
         alone(e4m3_of(128, 128, 192, 5,
                       "softmax is the bottleneck: as many keys a step as registers hold")),
         alone(in_varlen_capped(e4m3_of(128, 128, 128, 7, kAllMasks))),
         alone(e4m3_of(192, 128, 128, 4, "two warpgroups; O leaves room for four stages")),
         alone(in_varlen_capped(e4m3_of(192, 128, 64, 6, kAllMasks))), transposing(kE4m3Of256, {}),
         alone(kE4m3Of256), alone(in_varlen_capped(e4m3_of(256, 128, 64, 4, kAllMasks))));

// ---- Dropout: a thread's draws are those of one head, so that tiles are whole and no two heads
// share one. Blocks of keys are multiples of 16, as draws are ----

inline constexpr auto kDropoutRows = [] {
  const Row of_64 = tile_of(64, 128, 128, {.kv_stages = 8}, kDraws);
  const Row of_128 = tile_of(128, 128, 128, {.q_stages = 2, .kv_stages = 5}, kDraws);
  auto rows = join(alone(k64x192), alone(in(Tiles::kVarlen, of_64)), in_three_forms(of_128),
                   varlen_and_capped(k256));
  for (Row& row : rows) row.kernel.weights = Weights::kDropped;
  return rows;
}();

// ---- Lists of a block mask: a tile is a row of blocks of the mask, and each step one of its
// blocks, or half of one ----

inline constexpr Row kListed64 =
    with(Weights::kMaskBits, tile_of(64, 128, 128, {.q_stages = 2, .kv_stages = 8},
                                     "few tiles: the longest has an SM of its own"));
inline constexpr Row kListed128 =
    with(Weights::kMaskBits,
         tile_of(128, 128, 128, {.kv_stages = 5}, "two warpgroups share a block of the mask"));
inline constexpr auto kListedRows = join(
    dense_and_varlen(with(Weights::kMaskBits,
                          tile_of(64, 128, 64,
                                  {.q_stages = 2,
                                   .kv_stages = 8,
                                   .ctas_per_sm = 2,
                                   .overlaps = false,
                                   .ping_pong = false},
                                  "a row of blocks is work for two warpgroups: two CTAs of them "
                                  "keep tensor cores busier than one that overlaps"))),
    dense_and_varlen(kListed64), dense_and_varlen(kListed128));

// ---- Score functions. Three warpgroups have registers for functions that capture nothing, or add
// lines or runs to the score; others spill there (ptxas -v), but for tiles of a captured tensor,
// which lie in shared memory ----

constexpr Row because(const char* why, Row tile) {
  tile.why = why;
  return tile;
}
inline constexpr Row kScored64 = tile_of(64, 128, 128, {.kv_stages = 8}, kFunction);
inline constexpr Row kScored128 =
    tile_of(128, 128, 128, {.q_stages = 2, .kv_stages = 5}, kFunction);
inline constexpr auto kScoreRows =
    join(at_run_time(k64x192, kSimpleScores | kMovingScores), at_run_time(kScored64, kAllScores),
         at_run_time(k128x192, kSimpleScores), at_run_time(k128x192, kMovingScores, kManyKeys),
         at_run_time(tile_of(128, 192, 64, {.kv_stages = 6},
                             "longer tiles of queries read keys and values less often"),
                     {Need::kScoreTile}, kManyKeys),
         at_run_time(kScored128, kAllScores), at_run_time(k192By128, kAllScores),
         at_run_time(k192, kAllScores), at_run_time(k256, kAllScores),
         at_run_time(because(kFunction, kListed64), kAllScores),
         at_run_time(because(kFunction, kListed128), kAllScores));

// Score functions beside dropout come in tiles of two warpgroups, which have registers for draws.
inline constexpr auto kDroppedScoreRows = [] {
  auto rows = join(at_run_time(kScored64, kAllScores), at_run_time(kScored128, kAllScores),
                   at_run_time(k256, kAllScores));
  for (Row& row : rows) row.kernel.weights = Weights::kDropped;
  return rows;
}();

inline constexpr auto kAll =
    join(decode_rows(), kRows64, kRows96, kRows128, splitting(k192By128), splitting(k192), kRows256,
         kCacheRows, kE4m3Rows, kDropoutRows, kListedRows, decode_rows(kAllScores), kScoreRows,
         kDroppedScoreRows);

}  // namespace catalogue

inline constexpr auto& kForward = catalogue::kAll;

static_assert(std::ranges::all_of(kForward,
                                  [](const Row& row) { return row.kernel.is_consistent(); }));

// The kernel of a row for an element.
constexpr Kernel kernel_of(const Row& row, Element element) {
  Kernel kernel = row.kernel;
  kernel.element = element;
  return kernel;
}

// Whether a tile has a form that only decodes.
constexpr bool has_stream_k(const Kernel& c) {
  for (const Row& row : kForward) {
    const Kernel& k = row.kernel;
    if (k.tiles == Tiles::kStreamK && k.shape.head_dim == c.shape.head_dim &&
        k.shape.head_dim_v == c.shape.head_dim_v && k.shape.block_m == c.shape.block_m &&
        k.shape.block_n == c.shape.block_n && k.dequantizes() == c.dequantizes()) {
      return true;
    }
  }
  return false;
}

}  // namespace fa3::hopper
