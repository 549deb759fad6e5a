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

#include <array>
#include <cstddef>

#include "engine/hopper/kernels/row.h"

namespace fa3::hopper {
namespace catalogue {

template <std::size_t... N>
constexpr auto join(const std::array<Row, N>&... parts) {
  std::array<Row, (N + ...)> all;
  auto end = all.begin();
  const auto append = [&](const auto& part) {
    for (const Row& row : part) *end++ = row;
  };
  (append(parts), ...);
  return all;
}

constexpr Row in(Variant variant, Row row) {
  row.kernel = row.kernel.with(row.kernel.element, variant);
  return row;
}

// Of one length; all masks and lengths; softcap too.
constexpr auto in_three_forms(const Row& tile) {
  return std::array{in(Variant::kDense, tile), in(Variant::kGeneral, tile),
                    in(Variant::kCapped, tile)};
}

// The same, and a form that only decodes.
constexpr auto with_stream_k(const Row& tile) {
  Row stream_k = tile;
  stream_k.kernel = tile.kernel.stream_k();
  stream_k.why = tile.kernel.consumers() == 1
                     ? "few query rows: nothing but decoding in the kernel"
                     : "a tile for each sequence: nothing but decoding in the kernel";
  const auto [dense, general, capped] = in_three_forms(tile);
  return std::array{dense, stream_k, general, capped};
}

constexpr auto alone(const Row& row) {
  return std::array{row};
}
constexpr auto varlen_and_capped(const Row& tile) {
  return std::array{in(Variant::kGeneral, tile), in(Variant::kCapped, tile)};
}
constexpr auto dense_and_varlen(const Row& tile) {
  return std::array{in(Variant::kDense, tile), in(Variant::kGeneral, tile)};
}

// Over a quantized cache: no dense form.
constexpr auto of_cache(const Row& tile) {
  const auto [dense, stream_k, general, capped] = with_stream_k(tile);
  return std::array{stream_k, general, capped};
}

// Goes on from a result over other keys, or writes O in float32. Without such a result other
// kernels have more tiles to choose from, until sequences are long.
constexpr auto continued(Row tile) {
  tile.kernel.continued = true;
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
constexpr Row decoding(const DecodeTile& t, Variant variant, Needs kinds) {
  return {.kernel = {.head_dim = t.head_dim,
                     .head_dim_v = t.head_dim,
                     .block_m = t.rows,
                     .block_n = t.keys,
                     .kv_stages = t.stages,
                     .ping_pong = false,
                     .quantized_stages = t.cache ? 1 : 0,
                     .may_split = true,
                     .guarded = false,
                     .variant = variant},
          .score_kinds = kinds.empty() ? kinds : kinds | Needs{Need::kScoreFunction},
          .built = kinds.empty(),
          .why = "few query rows: each warp reads keys of its own"};
}
constexpr auto one_sequence_alone(const DecodeTile& t, Needs kinds = {}) {
  return std::array{decoding(t, Variant::kDecodeSingle, kinds)};
}
constexpr auto one_or_several_sequences(const DecodeTile& t, Needs kinds = {}) {
  return std::array{decoding(t, Variant::kDecodeSingle, kinds),
                    decoding(t, Variant::kDecode, kinds)};
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

inline constexpr Row k64x192{
    .kernel = {.head_dim = 64, .head_dim_v = 64, .block_m = 192, .block_n = 128, .kv_stages = 8},
    .why = kThreeShareSoftmax};
inline constexpr auto kRows64 = join(
    continued(k64x192),
    varlen_and_capped({.kernel = {.head_dim = 64,
                                  .head_dim_v = 64,
                                  .block_m = 64,
                                  .block_n = 32,
                                  .q_stages = 2,
                                  .kv_stages = 4,
                                  .ping_pong = false,
                                  .ctas_per_sm = 3},
                       .limits = {.most_keys = 64, .most_rows = 512},
                       .why = kTileEach}),
    with_stream_k({.kernel = {.head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 64,
                              .block_n = 128,
                              .kv_stages = 6,
                              .ping_pong = false,
                              .ctas_per_sm = 2,
                              .may_split = true},
                   .limits = {.most_rows = 64},
                   .why = kFewQueries}),
    with_stream_k({.kernel = {.head_dim = 64,
                              .head_dim_v = 64,
                              .block_m = 128,
                              .block_n = 128,
                              .q_stages = 2,
                              .kv_stages = 8,
                              .may_split = true},
                   .limits = {.most_keys = 0},
                   .row_cost = 1.25,  // for want of a third warpgroup
                   .why = "where tiles of 192 rows are too few for the SMs, and to split them"}),
    in_three_forms(k64x192));

inline constexpr auto kRows96 =
    in_three_forms({.kernel = {.head_dim = 96,
                               .head_dim_v = 96,
                               .block_m = 192,
                               .block_n = 96,
                               .kv_stages = 8,
                               .ping_pong = false},
                    .why = "three warpgroups, as many keys a step as their registers hold"});

inline constexpr Row k128x192{
    .kernel = {.head_dim = 128, .head_dim_v = 128, .block_m = 192, .block_n = 80, .kv_stages = 8},
    .why = kThreeKeepTensorCoresBusy};
inline constexpr auto kRows128 = join(
    continued(k128x192),
    varlen_and_capped({.kernel = {.block_m = 64,
                                  .block_n = 32,
                                  .q_stages = 2,
                                  .kv_stages = 4,
                                  .ping_pong = false,
                                  .ctas_per_sm = 2},
                       .limits = {.most_keys = 64, .most_rows = 512},
                       .why = kTileEach}),
    with_stream_k({.kernel = {.block_m = 64,
                              .block_n = 64,
                              .kv_stages = 5,
                              .ping_pong = false,
                              .ctas_per_sm = 2,
                              .may_split = true},
                   .limits = {.most_rows = 64},
                   .why = kFewQueries}),
    with_stream_k(
        {.kernel =
             {.block_m = 128, .block_n = 128, .q_stages = 2, .kv_stages = 5, .may_split = true},
         .limits = {.most_keys = 1535},
         .row_cost = 1.1,
         .why = "short sequences: 192 rows are too coarse a grain"}),
    in_three_forms(k128x192));

inline constexpr Row k192By128{.kernel = {.head_dim = 192,
                                          .head_dim_v = 128,
                                          .block_m = 128,
                                          .block_n = 80,
                                          .kv_stages = 5,
                                          .may_split = true},
                               .why = kOneQBuffer};
inline constexpr Row k192{.kernel = {.head_dim = 192,
                                     .head_dim_v = 192,
                                     .block_m = 128,
                                     .block_n = 80,
                                     .kv_stages = 5,
                                     .may_split = true},
                          .why = kOneQBuffer};
inline constexpr Row k256{.kernel = {.head_dim = 256,
                                     .head_dim_v = 256,
                                     .block_m = 128,
                                     .block_n = 64,
                                     .kv_stages = 5,
                                     .may_split = true},
                          .why = kOneQBuffer};
inline constexpr auto kRows256 = join(
    with_stream_k(
        {.kernel = {.head_dim = 256,
                    .head_dim_v = 256,
                    .block_m = 64,
                    .block_n = 64,
                    .kv_stages = 6,
                    .ping_pong = false,
                    .may_split = true},
         .limits = {.most_rows = 64},
         .why = "few queries: memory is the bottleneck, the pipeline holds what is on its way"}),
    with_stream_k(k256));

// ---- Quantized caches: K and V have half the bytes, so half as many wait in shared memory ----

inline constexpr auto kCacheRows = join(
    of_cache({.kernel = {.head_dim = 64,
                         .head_dim_v = 64,
                         .block_m = 64,
                         .block_n = 144,
                         .kv_stages = 3,
                         .ping_pong = false,
                         .ctas_per_sm = 2,
                         .quantized_stages = 5,
                         .may_split = true,
                         .guarded = false},
              .limits = {.most_rows = 64},
              .why = kLongTiles}),
    varlen_and_capped({.kernel = {.head_dim = 64,
                                  .head_dim_v = 64,
                                  .block_m = 128,
                                  .block_n = 128,
                                  .kv_stages = 6,
                                  .quantized_stages = 6,
                                  .may_split = true,
                                  .guarded = false},
                       .why = kDequantizers}),
    of_cache({.kernel = {.block_m = 64,
                         .block_n = 80,
                         .kv_stages = 3,
                         .ping_pong = false,
                         .ctas_per_sm = 2,
                         .quantized_stages = 3,
                         .may_split = true,
                         .guarded = false},
              .limits = {.most_rows = 64},
              .why = kLongTiles}),
    varlen_and_capped({.kernel = {.block_m = 128,
                                  .block_n = 128,
                                  .kv_stages = 4,
                                  .quantized_stages = 4,
                                  .may_split = true,
                                  .guarded = false},
                       .why = kDequantizers}),
    of_cache(
        {.kernel = {.head_dim = 256,
                    .head_dim_v = 256,
                    .block_m = 64,
                    .block_n = 64,
                    .kv_stages = 4,
                    .ping_pong = false,
                    .quantized_stages = 4,
                    .may_split = true,
                    .guarded = false},
         .limits = {.most_rows = 64},
         .why = "few queries: memory is the bottleneck, the pipeline holds what is on its way"}),
    varlen_and_capped({.kernel = {.head_dim = 256,
                                  .head_dim_v = 256,
                                  .block_m = 128,
                                  .block_n = 64,
                                  .kv_stages = 3,
                                  .quantized_stages = 4,
                                  .may_split = true,
                                  .guarded = false},
                       .why = kDequantizers}));

// ---- e4m3: a form for one length and at most a causal mask, another for all the rest ----

// V comes in rows, and the kernel transposes it again for each tile of rows, 4 to 25% of a tile's
// time, but nothing goes before its tiles: for keys that few rows see. Up to 128 columns tiles
// without a mask leave SMs idle for long enough.
constexpr auto transposing(Row tile, Needs only_for) {
  tile.kernel.transposes_v = true;
  tile.limits = {.most_keys = 1535, .most_rows_of_key = 512};
  tile.only_for = only_for;
  tile.why = "short sequences, whose V is transposed in the kernel";
  return alone(tile);
}
inline constexpr Row kE4m3Of128{
    .kernel = {.e4m3 = true, .block_m = 128, .block_n = 128, .kv_stages = 8, .ping_pong = false},
    .limits = {.most_keys = 1535},
    .why = "short sequences: 192 keys are too coarse a grain"};
inline constexpr Row kE4m3Of256{
    .kernel = {.e4m3 = true,
               .head_dim = 256,
               .head_dim_v = 256,
               .block_m = 128,
               .block_n = 128,
               .kv_stages = 4,
               .ping_pong = false},
    .why = "two warpgroups; the earlier parts of O leave room for four stages"};
inline constexpr auto kE4m3Rows = join(
    alone({.kernel = {.e4m3 = true,
                      .head_dim = 64,
                      .head_dim_v = 64,
                      .block_m = 192,
                      .block_n = 128,
                      .kv_stages = 8,
                      .ping_pong = false},
           .why = "softmax is the bottleneck: three warpgroups share it"}),
    alone(in(Variant::kCapped,
             {.kernel = {.e4m3 = true,
                         .head_dim = 64,
                         .head_dim_v = 64,
                         .block_m = 128,
                         .block_n = 128,
                         .kv_stages = 8,
                         .ping_pong = false},
              .why = "masks and lengths of all kinds; two warpgroups, whose registers hold them"})),
    transposing(kE4m3Of128, {Need::kMasked}), alone(kE4m3Of128),
    alone({.kernel =
               {.e4m3 = true, .block_m = 128, .block_n = 192, .kv_stages = 5, .ping_pong = false},
           .why = "softmax is the bottleneck: as many keys a step as registers hold"}),
    alone(
        in(Variant::kCapped,
           {.kernel =
                {.e4m3 = true, .block_m = 128, .block_n = 128, .kv_stages = 7, .ping_pong = false},
            .why = kAllMasks})),
    alone({.kernel = {.e4m3 = true,
                      .head_dim = 192,
                      .head_dim_v = 192,
                      .block_m = 128,
                      .block_n = 128,
                      .kv_stages = 4,
                      .ping_pong = false},
           .why = "two warpgroups; O leaves room for four stages"}),
    alone(in(Variant::kCapped, {.kernel = {.e4m3 = true,
                                           .head_dim = 192,
                                           .head_dim_v = 192,
                                           .block_m = 128,
                                           .block_n = 64,
                                           .kv_stages = 6,
                                           .ping_pong = false},
                                .why = kAllMasks})),
    transposing(kE4m3Of256, {}), alone(kE4m3Of256),
    alone(in(Variant::kCapped, {.kernel = {.e4m3 = true,
                                           .head_dim = 256,
                                           .head_dim_v = 256,
                                           .block_m = 128,
                                           .block_n = 64,
                                           .kv_stages = 4,
                                           .ping_pong = false},
                                .why = kAllMasks})));

// ---- Dropout: a thread's draws are those of one head, so that tiles are whole and no two heads
// share one. Blocks of keys are multiples of 16, as draws are ----

inline constexpr auto kDropoutRows = [] {
  const Row of_128{.kernel = {.block_m = 128, .block_n = 128, .q_stages = 2, .kv_stages = 5},
                   .why = kDraws};
  Row of_256 = k256;
  of_256.kernel.may_split = false;
  auto rows = join(alone(k64x192),
                   alone(in(Variant::kGeneral, {.kernel = {.head_dim = 64,
                                                           .head_dim_v = 64,
                                                           .block_m = 128,
                                                           .block_n = 128,
                                                           .kv_stages = 8},
                                                .why = kDraws})),
                   in_three_forms(of_128), varlen_and_capped(of_256));
  for (Row& row : rows) row.kernel.dropout = true;
  return rows;
}();

// ---- Lists of a block mask: a tile is a row of blocks of the mask, and each step one of its
// blocks, or half of one ----

inline constexpr Row kListed64{.kernel = {.head_dim = 64,
                                          .head_dim_v = 64,
                                          .block_m = 128,
                                          .block_n = 128,
                                          .q_stages = 2,
                                          .kv_stages = 8,
                                          .block_mask = true},
                               .why = "few tiles: the longest has an SM of its own"};
inline constexpr Row kListed128{
    .kernel = {.block_m = 128, .block_n = 128, .kv_stages = 5, .block_mask = true},
    .why = "two warpgroups share a block of the mask"};
inline constexpr auto kListedRows =
    join(dense_and_varlen({.kernel = {.head_dim = 64,
                                      .head_dim_v = 64,
                                      .block_m = 128,
                                      .block_n = 64,
                                      .q_stages = 2,
                                      .kv_stages = 8,
                                      .overlaps = false,
                                      .ping_pong = false,
                                      .ctas_per_sm = 2,
                                      .block_mask = true},
                           .limits = {.more_tiles_than_ctas = true},
                           .why = "a row of blocks is work for two warpgroups: two CTAs of them "
                                  "keep tensor cores busier than one that overlaps"}),
         dense_and_varlen(kListed64), dense_and_varlen(kListed128));

// ---- Score functions. Three warpgroups have registers for functions that capture nothing, or add
// lines or runs to the score; others spill there (ptxas -v), but for tiles of a captured tensor,
// which lie in shared memory ----

constexpr Row whole(Row tile, const char* why = kFunction) {
  tile.kernel.may_split = false;
  tile.why = why;
  return tile;
}
inline constexpr auto kScoreRows = join(
    at_run_time(k64x192, kSimpleScores | kMovingScores),
    at_run_time(
        {.kernel =
             {.head_dim = 64, .head_dim_v = 64, .block_m = 128, .block_n = 128, .kv_stages = 8},
         .why = kFunction},
        kAllScores),
    at_run_time(k128x192, kSimpleScores), at_run_time(k128x192, kMovingScores, kManyKeys),
    at_run_time({.kernel = {.block_m = 192, .block_n = 64, .kv_stages = 6},
                 .why = "longer tiles of queries read keys and values less often"},
                {Need::kScoreTile}, kManyKeys),
    at_run_time({.kernel = {.block_m = 128, .block_n = 128, .q_stages = 2, .kv_stages = 5},
                 .why = kFunction},
                kAllScores),
    at_run_time(whole(k192By128, kOneQBuffer), kAllScores),
    at_run_time(whole(k192, kOneQBuffer), kAllScores),
    at_run_time(whole(k256, kOneQBuffer), kAllScores), at_run_time(whole(kListed64), kAllScores),
    at_run_time(whole(kListed128), kAllScores));

inline constexpr auto kAll =
    join(decode_rows(), kRows64, kRows96, kRows128, in_three_forms(k192By128), in_three_forms(k192),
         kRows256, kCacheRows, kE4m3Rows, kDropoutRows, kListedRows, decode_rows(kAllScores),
         kScoreRows);

}  // namespace catalogue

inline constexpr auto& kForward = catalogue::kAll;

// The kernel of a row for an element.
constexpr ForwardConfig kernel_of(const Row& row, Element element) {
  ForwardConfig kernel = row.kernel;
  kernel.element = element;
  return kernel;
}

// Whether a tile has a form that only decodes.
constexpr bool has_stream_k(const ForwardConfig& c) {
  for (const Row& row : kForward) {
    const ForwardConfig& k = row.kernel;
    if (k.variant == Variant::kStreamK && k.head_dim == c.head_dim &&
        k.head_dim_v == c.head_dim_v && k.block_m == c.block_m && k.block_n == c.block_n &&
        k.dequantizes() == c.dequantizes()) {
      return true;
    }
  }
  return false;
}

}  // namespace fa3::hopper
