// SPDX-License-Identifier: Apache-2.0
#include "support/cases/kernel_cases.h"

#include <algorithm>

namespace fa3::test {
namespace {

struct CaseRow {
  const char* name;
  int64_t batch, heads_q, heads_k, seqlen_q, seqlen_k;
  bool causal;
  Scores scores = Scores::normal;
  float amount = 0;
  double gain = 1;
  int64_t less_dim = 0, less_dim_v = 0;  // fewer columns than the kernel's
  Layout layout = Layout::bshd;
  int64_t left = -1, right = -1;
  int64_t chunk = 0;
  float softcap = 0;
  bool sink = false;
  int32_t shift = 0;  // of the window
};

// A case's inputs hang on its place: new ones go to the end.
// clang-format off
constexpr CaseRow kRows[] = {
    {"one_tile", 1, 1, 1, 128, 128, false},
    {"one_key", 1, 2, 2, 5, 1, false},
    {"no_keys", 1, 2, 2, 130, 0, false},
    {"even", 2, 3, 3, 512, 512, false},
    {"even_causal", 2, 3, 3, 512, 512, true},
    {"long", 1, 2, 2, 200, 6400, false},
    {"long_causal", 1, 1, 1, 300, 6400, true},
    {"square_causal", 1, 1, 1, 2048, 2048, true},
    {"many_tiles", 5, 8, 8, 700, 300, false},
    {"many_tiles_causal", 5, 8, 8, 900, 900, true},
    {"varlen", 2, 3, 3, 113, 203, false},
    {"ragged_causal", 2, 3, 3, 113, 203, true},
    {"more_queries_causal", 2, 2, 2, 777, 333, true},
    {"far_more_queries_causal", 1, 2, 2, 1000, 3, true},
    {"one_query_causal", 3, 4, 4, 1, 1023, true},
    {"gqa_4", 2, 8, 2, 300, 517, false},
    {"mqa_causal", 2, 6, 1, 257, 641, true},
    {"gqa_3_causal", 2, 6, 2, 257, 641, true},
    {"few_queries_tails_causal", 3, 16, 2, 4, 309, true},
    {"few_queries_gqa_8_causal", 2, 16, 2, 4, 1500, true},
    {"few_queries_peaked", 2, 16, 2, 8, 1100, true, Scores::normal, 0, 16},
    {"few_queries_nan_value", 1, 8, 1, 1, 700, false, Scores::nan_value},
    {"few_queries_more_than_keys", 2, 8, 1, 8, 3, true},
    {.name = "few_queries_sink", .batch = 2, .heads_q = 8, .heads_k = 1, .seqlen_q = 1,
     .seqlen_k = 900, .sink = true},
    {"ragged_gqa_8_causal", 1, 8, 1, 33, 77, true},
    {"gqa_8_causal", 2, 16, 2, 391, 391, true},
    {"gqa_16_one_query", 3, 16, 1, 1, 777, false},
    {"gqa_32_few_queries", 1, 64, 2, 37, 301, true},
    {"gqa_8_more_queries_causal", 2, 16, 2, 333, 77, true},
    {"gqa_4_heads_first_causal", 2, 8, 2, 259, 391, true, Scores::normal, 0, 1, 0, 0, Layout::bhsd},
    {"gqa_8_first_key_500", 2, 16, 2, 100, 1500, true, Scores::first_key, 500},
    {"gqa_8_nan_query", 1, 16, 2, 100, 700, true, Scores::nan_query},
    {"heads_first", 2, 4, 2, 259, 391, false, Scores::normal, 0, 1, 0, 0, Layout::bhsd},
    {"spaced_causal", 2, 4, 2, 391, 391, true, Scores::normal, 0, 1, 0, 0, Layout::spaced},
    {"short_head", 2, 2, 2, 300, 300, false, Scores::normal, 0, 1, 24, 24},
    {"short_head_causal", 2, 2, 2, 300, 300, true, Scores::normal, 0, 1, 8, 16},
    {"flat", 1, 2, 2, 200, 1024, false, Scores::normal, 0, 0.02},
    {"equal", 1, 2, 2, 200, 1024, false, Scores::normal, 0, 0},
    {"peaked", 1, 2, 2, 200, 1024, false, Scores::normal, 0, 4},
    {"very_peaked", 1, 2, 2, 200, 1024, false, Scores::normal, 0, 16},
    {"very_peaked_causal", 1, 2, 2, 600, 600, true, Scores::normal, 0, 16},
    {"rising_5", 1, 2, 2, 200, 1500, false, Scores::rising, 5},
    {"rising_50", 1, 2, 2, 200, 1500, false, Scores::rising, 50},
    {"rising_500", 1, 2, 2, 200, 1500, false, Scores::rising, 500},
    {"falling_5", 1, 2, 2, 200, 1500, false, Scores::falling, 5},
    {"falling_50", 1, 2, 2, 200, 1500, false, Scores::falling, 50},
    {"falling_500", 1, 2, 2, 200, 1500, false, Scores::falling, 500},
    {"falling_500_causal", 1, 2, 2, 600, 600, true, Scores::falling, 500},
    {"falling_4000", 1, 2, 2, 200, 1500, false, Scores::falling, 4000},
    {"step_5", 1, 2, 2, 200, 1500, false, Scores::step, 5},
    {"step_50", 1, 2, 2, 200, 1500, false, Scores::step, 50},
    {"step_500", 1, 2, 2, 200, 1500, false, Scores::step, 500},
    {"step_500_many", 4, 8, 8, 512, 1024, false, Scores::step, 500},
    {"first_key_5", 1, 2, 2, 200, 1500, false, Scores::first_key, 5},
    {"first_key_80", 1, 2, 2, 200, 1500, false, Scores::first_key, 80},
    {"first_key_100", 1, 2, 2, 200, 1500, false, Scores::first_key, 100},
    {"first_key_1000", 1, 2, 2, 200, 1500, false, Scores::first_key, 1000},
    {"first_key_500_causal", 2, 4, 4, 1500, 1500, true, Scores::first_key, 500},
    {"last_key_100", 1, 2, 2, 200, 1500, false, Scores::last_key, 100},
    {"last_key_1000", 1, 2, 2, 200, 1500, false, Scores::last_key, 1000},
    {"huge", 1, 2, 2, 200, 1024, false, Scores::huge},
    {"nan_query", 1, 2, 2, 200, 1024, false, Scores::nan_query},
    {"nan_key", 1, 2, 2, 200, 1024, true, Scores::nan_key},
    {"nan_value", 1, 2, 2, 200, 1024, false, Scores::nan_value},
    {"inf_query", 1, 2, 2, 200, 1024, false, Scores::inf_query},
    {.name = "sink", .batch = 2, .heads_q = 6, .heads_k = 2, .seqlen_q = 300, .seqlen_k = 700,
     .sink = true},
    {.name = "sink_more_queries_causal", .batch = 1, .heads_q = 8, .heads_k = 1, .seqlen_q = 400,
     .seqlen_k = 300, .causal = true, .sink = true},
    {.name = "sink_and_no_keys", .batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 130,
     .seqlen_k = 0, .sink = true},
    {.name = "sink_peaked_softcap", .batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 200,
     .seqlen_k = 500, .gain = 16, .softcap = 40, .sink = true},
    {.name = "softcap", .batch = 2, .heads_q = 2, .heads_k = 2, .seqlen_q = 300, .seqlen_k = 700,
     .softcap = 30},
    {.name = "softcap_of_small_scores_causal", .batch = 1, .heads_q = 4, .heads_k = 2,
     .seqlen_q = 600, .seqlen_k = 600, .causal = true, .gain = 0.1, .softcap = 50},
    {.name = "softcap_of_large_scores", .batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 200,
     .seqlen_k = 1024, .gain = 16, .softcap = 8},
    {.name = "softcap_window", .batch = 1, .heads_q = 2, .heads_k = 1, .seqlen_q = 700,
     .seqlen_k = 800, .causal = true, .left = 300, .softcap = 15},
    {.name = "softcap_step_500", .batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 200,
     .seqlen_k = 1500, .scores = Scores::step, .amount = 500, .softcap = 300},
    {.name = "softcap_nan_key", .batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 200,
     .seqlen_k = 700, .causal = true, .scores = Scores::nan_key, .softcap = 30},
    {.name = "softcap_inf_query", .batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 200,
     .seqlen_k = 700, .scores = Scores::inf_query, .softcap = 30},
    {.name = "window", .batch = 2, .heads_q = 2, .heads_k = 2, .seqlen_q = 700, .seqlen_k = 700,
     .left = 128, .right = 0},
    {.name = "window_both_sides", .batch = 1, .heads_q = 3, .heads_k = 3, .seqlen_q = 500,
     .seqlen_k = 900, .left = 200, .right = 77},
    {.name = "window_left", .batch = 1, .heads_q = 2, .heads_k = 1, .seqlen_q = 1000,
     .seqlen_k = 600, .left = 333},
    {.name = "window_right", .batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 600,
     .seqlen_k = 600, .right = 100},
    {.name = "window_self", .batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 400,
     .seqlen_k = 350, .left = 0, .right = 0},
    {.name = "window_causal_gqa_8", .batch = 2, .heads_q = 16, .heads_k = 2, .seqlen_q = 391,
     .seqlen_k = 591, .causal = true, .left = 60},
    {.name = "window_long", .batch = 1, .heads_q = 1, .heads_k = 1, .seqlen_q = 5000,
     .seqlen_k = 5000, .causal = true, .left = 1000},
    {.name = "window_peaked", .batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 900,
     .seqlen_k = 900, .causal = true, .gain = 16, .left = 500},
    {.name = "window_step_500", .batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 200,
     .seqlen_k = 1500, .scores = Scores::step, .amount = 500, .left = 1200},
    {.name = "chunk", .batch = 2, .heads_q = 2, .heads_k = 2, .seqlen_q = 700, .seqlen_k = 700,
     .chunk = 300},
    {.name = "chunk_causal_gqa_4", .batch = 1, .heads_q = 8, .heads_k = 2, .seqlen_q = 500,
     .seqlen_k = 900, .causal = true, .chunk = 256},
    {.name = "chunk_window_short", .batch = 1, .heads_q = 2, .heads_k = 1, .seqlen_q = 900,
     .seqlen_k = 600, .left = 60, .right = 9, .chunk = 23},
    {.name = "chunk_long_peaked", .batch = 1, .heads_q = 1, .heads_k = 1, .seqlen_q = 3000,
     .seqlen_k = 3000, .causal = true, .gain = 16, .chunk = 1000},
    {"inf_key", 1, 2, 2, 200, 1024, false, Scores::inf_key},
    {"no_weight", 1, 2, 2, 200, 1024, false, Scores::no_weight},
    {"no_weight_causal", 1, 2, 2, 500, 500, true, Scores::no_weight},
    {"few_queries_many_sequences", 70, 4, 2, 1, 150, false},
    {"few_queries_tails_alone_causal", 1, 16, 2, 1, 309, true},
    {.name = "earlier_keys", .batch = 2, .heads_q = 2, .heads_k = 2, .seqlen_q = 700,
     .seqlen_k = 700, .right = 0, .shift = -1},
    {.name = "later_keys", .batch = 2, .heads_q = 2, .heads_k = 2, .seqlen_q = 700,
     .seqlen_k = 700, .left = 0, .shift = 1},
    {.name = "band_before_gqa_4", .batch = 1, .heads_q = 8, .heads_k = 2, .seqlen_q = 500,
     .seqlen_k = 900, .left = 200, .right = 60, .shift = -400},
    {.name = "band_behind", .batch = 1, .heads_q = 3, .heads_k = 3, .seqlen_q = 900,
     .seqlen_k = 600, .left = 60, .right = 200, .shift = 300},
    {.name = "band_behind_peaked_sink", .batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 900,
     .seqlen_k = 1800, .gain = 16, .left = 100, .right = 900, .sink = true, .shift = 400},
    {.name = "band_behind_softcap", .batch = 1, .heads_q = 2, .heads_k = 1, .seqlen_q = 300,
     .seqlen_k = 300, .left = 5, .softcap = 15, .shift = 90},
    {.name = "band_beyond_all_keys", .batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 200,
     .seqlen_k = 300, .left = 5, .right = 5, .shift = 900},
    {.name = "band_of_chunks", .batch = 1, .heads_q = 2, .heads_k = 2, .seqlen_q = 700,
     .seqlen_k = 700, .left = 40, .right = 30, .chunk = 256, .shift = 120},
    {.name = "few_queries_earlier_keys", .batch = 2, .heads_q = 16, .heads_k = 2, .seqlen_q = 4,
     .seqlen_k = 1500, .right = 0, .shift = -700},
    {.name = "few_queries_later_keys", .batch = 2, .heads_q = 16, .heads_k = 2, .seqlen_q = 4,
     .seqlen_k = 1500, .left = 0, .shift = 2},
    {.name = "few_queries_without_earlier_keys", .batch = 2, .heads_q = 16, .heads_k = 2,
     .seqlen_q = 4, .seqlen_k = 1500, .right = 0, .shift = -1498},
    {"nan_query_more_queries_causal", 1, 2, 2, 700, 500, true, Scores::nan_query},
};
// clang-format on

// Sequences of lengths of their own; memory that belongs to none is NaN.
struct RaggedRow {
  const char* name;
  int64_t heads_q, heads_k;
  Side q, k;
  bool causal = false;
  int64_t left = -1, right = -1;
  int64_t chunk = 0;
  float softcap = 0;
  bool sink = false;
  double gain = 1;
  int32_t shift = 0;
};

std::vector<int32_t> many_lengths(int count, int longest, int seed) {
  std::vector<int32_t> lengths;
  for (int i = 0; i < count; ++i) lengths.push_back((i * 7919 + seed) % (longest + 1));
  return lengths;
}

std::vector<RaggedRow> ragged_rows() {
  const Side q{.owned = {300, 0, 1, 200, 64, 0}, .spare_rows = 3};
  const Side k{.owned = {301, 5, 0, 200, 700, 0}, .spare_rows = 70};
  const Side q_used{.owned = {300, 0, 7, 200, 64, 250}, .used = {171, 0, 7, 64, 0, 249}};
  const Side k_used{.owned = {301, 5, 10, 200, 700, 400}, .used = {200, 5, 0, 199, 513, 80}};
  return {
      {.name = "packed", .heads_q = 2, .heads_k = 2, .q = q, .k = k},
      {.name = "packed_causal", .heads_q = 3, .heads_k = 1, .q = q, .k = k, .causal = true},
      {.name = "packed_gqa_8", .heads_q = 16, .heads_k = 2, .q = q, .k = k, .causal = true},
      {.name = "packed_used", .heads_q = 2, .heads_k = 2, .q = q_used, .k = k_used},
      {.name = "packed_used_causal_gqa_4",
       .heads_q = 4,
       .heads_k = 1,
       .q = q_used,
       .k = k_used,
       .causal = true},
      {.name = "packed_window",
       .heads_q = 2,
       .heads_k = 1,
       .q = q,
       .k = k,
       .left = 90,
       .right = 20},
      {.name = "packed_chunk",
       .heads_q = 4,
       .heads_k = 2,
       .q = q_used,
       .k = k_used,
       .causal = true,
       .chunk = 70},
      {.name = "packed_sink", .heads_q = 2, .heads_k = 2, .q = q_used, .k = k_used, .sink = true},
      {.name = "packed_softcap_causal",
       .heads_q = 2,
       .heads_k = 2,
       .q = q,
       .k = k,
       .causal = true,
       .softcap = 20},
      {.name = "packed_huge",
       .heads_q = 2,
       .heads_k = 2,
       .q = {.owned = {100, 200, 33}},
       .k = {.owned = {900, 1500, 600}},
       .gain = 300},
      {.name = "packed_many_short",
       .heads_q = 2,
       .heads_k = 2,
       .q = {.owned = many_lengths(1500, 6, 3)},
       .k = {.owned = many_lengths(1500, 9, 5)},
       .causal = true},
      {.name = "packed_queries_dense_keys",
       .heads_q = 2,
       .heads_k = 2,
       .q = {.owned = {100, 1, 0, 65}},
       .k = {.rows = 300, .used = {300, 0, 77, 128}}},
      {.name = "dense_queries_packed_keys",
       .heads_q = 2,
       .heads_k = 2,
       .q = {.rows = 200, .used = {200, 0, 77, 128}},
       .k = {.owned = {100, 1, 0, 650}},
       .causal = true},
      {.name = "used_keys_one_query",
       .heads_q = 8,
       .heads_k = 2,
       .q = {.rows = 1},
       .k = {.rows = 700, .used = {700, 0, 1, 128, 129, 513}}},
      {.name = "used_both",
       .heads_q = 2,
       .heads_k = 2,
       .q = {.rows = 300, .used = {0, 300, 64, 65}},
       .k = {.rows = 500, .used = {400, 500, 0, 128}},
       .causal = true},
      {.name = "packed_earlier_keys",
       .heads_q = 4,
       .heads_k = 1,
       .q = q,
       .k = k,
       .left = 90,
       .right = 0,
       .shift = -30},
      {.name = "packed_used_later_keys",
       .heads_q = 2,
       .heads_k = 2,
       .q = q_used,
       .k = k_used,
       .left = 0,
       .sink = true,
       .shift = 70},
      {.name = "used_keys_one_query_earlier_keys",
       .heads_q = 8,
       .heads_k = 2,
       .q = {.rows = 1},
       .k = {.rows = 700, .used = {700, 0, 1, 128, 129, 513}},
       .right = 0,
       .shift = -128},
      // Tiles of 128 rows, one for each sequence and key head, whose splits end anywhere.
      {.name = "used_keys_tokens_sink",
       .heads_q = 16,
       .heads_k = 2,
       .q = {.rows = 16},
       .k = {.rows = 2200, .used = {2200, 0, 1, 130, 1999, 700, 2200, 64}},
       .causal = true,
       .sink = true},
      {.name = "used_keys_fewer_tokens_peaked",
       .heads_q = 16,
       .heads_k = 2,
       .q = {.rows = 12},
       .k = {.rows = 2200, .used = {5, 2200, 1290, 12, 640}},
       .causal = true,
       .gain = 16},
      {.name = "used_keys_tokens_without_earlier_keys",
       .heads_q = 16,
       .heads_k = 2,
       .q = {.rows = 16},
       .k = {.rows = 1500, .used = {1500, 900, 0, 715, 1400}},
       .right = 0,
       .shift = -700},
  };
}

}  // namespace

std::vector<NamedCase> kernel_cases(int64_t dim, int64_t dim_v, fa3_dtype dtype) {
  std::vector<NamedCase> cases;
  for (const CaseRow& row : kRows) {
    Case c = dense_case(row.batch, row.seqlen_q, row.seqlen_k, row.heads_q, row.heads_k,
                        dim - row.less_dim, dim_v - row.less_dim_v, dtype);
    c.causal = row.causal;
    c.left = row.left;
    c.right = row.right;
    c.shift = row.shift;
    c.chunk = row.chunk;
    c.softcap = row.softcap;
    c.sink = row.sink;
    c.scores = row.scores;
    c.amount = row.amount;
    c.gain = row.gain;
    c.in = c.out = row.layout;
    c.seed = 20000 + static_cast<uint64_t>(&row - kRows);
    cases.push_back({row.name, c});
  }
  uint64_t seed = 30000;
  for (const RaggedRow& row : ragged_rows()) {
    const std::vector<int32_t>& each = row.q.packed()   ? row.q.owned
                                       : row.k.packed() ? row.k.owned
                                                        : row.k.used;
    const auto batch = static_cast<int64_t>(each.size());
    Case c = dense_case(batch, 0, 0, row.heads_q, row.heads_k, dim, dim_v, dtype);
    c.q = row.q;
    c.k = row.k;
    c.causal = row.causal;
    c.left = row.left;
    c.right = row.right;
    c.shift = row.shift;
    c.chunk = row.chunk;
    c.softcap = row.softcap;
    c.sink = row.sink;
    c.gain = row.gain;
    c.seed = seed++;
    cases.push_back({row.name, c});
  }
  return cases;
}

}  // namespace fa3::test
