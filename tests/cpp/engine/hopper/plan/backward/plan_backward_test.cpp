// SPDX-License-Identifier: Apache-2.0
// A backward's launches: which kernel, how many CTAs, what they split and pack.
#include <gtest/gtest.h>

#include <utility>

#include "engine/hopper/plan/backward/backward_calls.h"

namespace fa3::hopper {
namespace {

TEST(BackwardPlan, splits_the_query_heads_of_causal_key_blocks) {
  const auto splits = [&](int64_t batches, int64_t rows, int64_t heads_per_kv_head) {
    return plan_128(grouped(batches, rows, 4 * heads_per_kv_head)).step_splits();
  };
  EXPECT_EQ(splits(16, 1024, 8), 4);  // for 2048 CTAs
  EXPECT_EQ(splits(4, 4096, 8), 4);
  EXPECT_EQ(splits(8, 4096, 8), 2);
  EXPECT_EQ(splits(16, 4096, 8), 1);
  EXPECT_EQ(splits(32, 1024, 8), 1);   // the sums would cost more
  EXPECT_EQ(splits(16, 1024, 6), 6);   // not 4, which are not equal
  EXPECT_EQ(splits(1, 1000, 8), 8);    // a head each
  EXPECT_EQ(splits(1, 1000, 257), 1);  // more than order.step_splits can hold
  EXPECT_EQ(splits(1, 1000, 1), 1);
  EXPECT_EQ(splits(0, 1000, 8), 1);
  EXPECT_EQ(splits(1, 0, 8), 1);
  EXPECT_EQ(plan_128(grouped(16, 1024, 32)).grids.main, 8 * 4 * 16 * 4);
  BackwardCall full = grouped(3, 1000, 32), deterministic = full;
  full.mask = {};
  full.batch_invariant = true;  // not by steps either (few_key_blocks_test.cpp)
  deterministic.deterministic = true;
  EXPECT_EQ(plan_128(full).grids.main, 8 * 4 * 3);
  EXPECT_EQ(plan_128(deterministic).grids.main, 8 * 4 * 3);
  EXPECT_EQ(plan_128(grouped(3, 1000, 32), Variant::kGeneral).grids.main, 8 * 4 * 3);
}

// Q, dO and the sums of dQ take 2 KB a row and head at 256 columns, half of that at 128.
TEST(BackwardPlan, splits_steps_that_fill_the_sms_into_64_mb_of_rows) {
  const auto splits = [](int64_t columns, int64_t rows, int64_t heads_per_kv_head) {
    return plan_launches(kernel_for(columns), grouped(1, rows, 4 * heads_per_kv_head), kSms)
        .step_splits();
  };
  EXPECT_EQ(splits(256, 8192, 4), 1);
  EXPECT_EQ(splits(256, 8192, 5), 5);  // not 2, which are not equal
  EXPECT_EQ(splits(256, 8192, 8), 2);
  EXPECT_EQ(splits(256, 16384, 8), 4);
  EXPECT_EQ(splits(256, 65536, 8), 8);  // a head each
  EXPECT_EQ(splits(128, 16384, 4), 1);
  EXPECT_EQ(splits(128, 16384, 8), 2);
  EXPECT_EQ(splits(64, 16384, 8), 1);
  EXPECT_EQ(splits(256, 16384, 1), 1);
}

// Two CTAs for 128 keys, or for fewer at the end: of each head and batch entry, and of each split.
TEST(BackwardPlan, of_256_columns_has_pairs_of_CTAs) {
  const auto tiles = [](int64_t keys, int64_t kv_heads, Variant v) {
    BackwardCall a = grouped(3, 1000, 8);
    a.k.rows = keys;
    a.k.heads = kv_heads;
    a.mask = {};
    a.batch_invariant = true;  // whole
    const BackwardPlan plan = plan_launches(kernel_for(256, 256, v), a, kSms);
    EXPECT_EQ(plan.grids.main, plan.num_tiles);
    EXPECT_EQ(plan.num_tiles, plan.order.num_tiles() * plan.main_config.ctas());
    return plan.num_tiles;
  };
  for (const Variant v : {Variant::kDense, Variant::kGeneral}) {
    EXPECT_EQ(tiles(1, 2, v), 2 * 2 * 3);
    EXPECT_EQ(tiles(128, 2, v), 2 * 2 * 3);
    EXPECT_EQ(tiles(129, 2, v), 4 * 2 * 3);
    EXPECT_EQ(tiles(300, 1, v), 6 * 1 * 3);
  }
  const BackwardPlan split = plan_launches(kernel_for(256), grouped(3, 300, 32), kSms);
  EXPECT_EQ(split.step_splits(), 8);
  EXPECT_EQ(split.num_tiles, 6 * 4 * 3 * 8);
}

TEST(BackwardPlan, of_sequences_that_a_tile_holds_has_one_launch_and_no_workspace) {
  BackwardCall a = call(1, 1000, 5);
  a.varlen = true;
  a.sequences = 70;
  a.seqlen_q = a.seqlen_k = 64;
  const BackwardPlan plan = plan_128(a, Variant::kGeneral);
  EXPECT_TRUE(plan.short_sequences);
  EXPECT_EQ(plan.grids.short_sequences, 71 * 5);
  EXPECT_EQ(plan.grids.main, 0);
  EXPECT_EQ(plan.workspace.bytes, 0);
  EXPECT_FALSE(plan_128(a, Variant::kCapped).short_sequences);
  EXPECT_GT(plan_128(a, Variant::kCapped).workspace.bytes, 0);
  const auto is_short = [](BackwardCall c) {
    return plan_128(c, Variant::kGeneral).short_sequences;
  };
  BackwardCall longer = a, sink = a, invariant = a;
  longer.seqlen_k = 65;
  sink.has_sink = true;
  invariant.batch_invariant = true;
  EXPECT_FALSE(is_short(longer));
  EXPECT_FALSE(is_short(sink));
  EXPECT_FALSE(is_short(invariant));
}

TEST(BackwardPlan, packs_as_many_heads_as_the_tile_of_a_short_sequence_has_room_for) {
  const auto packed_heads = [](int64_t seqlen_q, int64_t heads, int64_t kv_heads, int batches = 1) {
    BackwardCall a = call(batches, 1000, heads);
    a.k.heads = a.v.heads = a.dk.heads = a.dv.heads = kv_heads;
    a.varlen = true;
    a.sequences = 70;
    a.seqlen_q = int(seqlen_q);
    a.seqlen_k = 64;
    return plan_128(a, Variant::kGeneral).short_pack.heads();
  };
  EXPECT_EQ(packed_heads(32, 32, 4), 2);
  EXPECT_EQ(packed_heads(33, 32, 4), 1);
  EXPECT_EQ(packed_heads(1, 32, 4), 8);
  EXPECT_EQ(packed_heads(16, 12, 2), 2);  // of six
  EXPECT_EQ(packed_heads(16, 5, 1), 1);
  EXPECT_EQ(packed_heads(16, 32, 4, 2), 1);
  EXPECT_EQ(packed_heads(65, 32, 4), 1);
}

// The main kernel of a call is that of its order of additions and of its splits.
TEST(BackwardPlan, takes_the_main_kernel_that_the_call_needs) {
  const char functions[3] = {};
  BackwardKernel kernel = kernel_for(64);  // no helpers, unless they keep the order
  kernel.main = functions;
  kernel.main_deterministic = functions + 1;
  kernel.splits.main = functions + 2;
  const auto main_of = [&](const BackwardCall& a) {
    const BackwardPlan plan = plan_launches(kernel, a, kSms);
    return std::pair(static_cast<const char*>(plan.main) - functions, plan.main_config.threads());
  };
  BackwardCall deterministic = grouped(1, 1000, 8);
  deterministic.deterministic = true;
  EXPECT_EQ(main_of(call(1, 1000, 8)), std::pair(ptrdiff_t{0}, 3 * 128));
  EXPECT_EQ(main_of(deterministic), std::pair(ptrdiff_t{1}, 4 * 128));
  EXPECT_EQ(main_of(grouped(1, 1000, 8)), std::pair(ptrdiff_t{2}, 3 * 128));
}

}  // namespace
}  // namespace fa3::hopper
