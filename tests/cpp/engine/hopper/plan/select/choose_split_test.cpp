// SPDX-License-Identifier: Apache-2.0
// Which heads share a tile, and whether its keys are split.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "engine/hopper/plan/plain_problem.h"
#include "engine/hopper/plan/select/choose_split.h"
#include "engine/hopper/plan/select/select.h"

namespace fa3::hopper {
namespace {

TEST(PackGqa, share_a_tile_where_that_saves_tiles_or_masked_work) {
  constexpr Kernel kConfig{};
  const auto packed = [&](int64_t queries, int group, bool causal) {
    ForwardCall call;
    call.q.batches = 1;
    call.q.heads = 2 * group;
    call.q.rows = queries;
    call.seqlen_q = int(queries);
    call.heads_per_kv_head = group;
    if (causal) call.mask.right = 0;
    return choose_pack(kConfig, call).heads();
  };
  EXPECT_EQ(packed(1, 8, false), 8);
  EXPECT_EQ(packed(1, 1, false), 1);
  EXPECT_EQ(packed(1, 12, true), 4);    // of a group, whole packs only
  EXPECT_EQ(packed(1, 64, true), 16);   // a warp's rows
  EXPECT_EQ(packed(512, 8, false), 1);  // full tiles already
  EXPECT_EQ(packed(513, 8, false), 8);
  EXPECT_EQ(packed(512, 8, true), 8);
  EXPECT_EQ(packed(100, 2, true), 1);               // two tiles either way
  EXPECT_EQ(packed(int64_t{1} << 29, 8, true), 2);  // row numbers are 32-bit
}

TEST(SplitKv, splits_few_queries_and_leaves_many_alone) {
  ForwardCall decode;
  decode.q.batches = decode.sequences = 4;
  decode.q.heads = 64;
  decode.q.rows = decode.seqlen_q = 1;
  decode.o.columns = 128;
  decode.heads_per_kv_head = 8;
  decode.seqlen_k = 8192;
  decode.mask.right = 0;
  const auto split = [&](const ForwardCall& call, int num_splits, int block_m = 64) {
    const Kernel config{.shape = {.block_m = block_m, .block_n = 64}, .tiles = Tiles::kSplit};
    return choose_split(config, call, num_splits, kSms);
  };
  const Tiling shared = split(decode, 0);
  EXPECT_EQ(shared.scheduler, Scheduler::kStreamK);
  EXPECT_EQ(shared.split.groups_log2, 3);  // a row for each of the 8 packs of heads
  EXPECT_EQ(shared.split.ctas, 128);
  EXPECT_EQ(shared.pack.heads(), 8);
  ForwardCall many_heads = decode;  // 40 packs, of which 8 rows hold as many each
  many_heads.q.heads = 320;
  EXPECT_EQ(split(many_heads, 0).split.groups_log2, 3);
  EXPECT_EQ(split(many_heads, 0).split.ctas, 128);
  ForwardCall shared_keys = decode;  // by eight packs, which four rows would part
  shared_keys.q.rows = shared_keys.seqlen_q = 128;
  shared_keys.q.columns = 128;
  shared_keys.varlen = true;
  EXPECT_EQ(split(shared_keys, 0, 128).split.groups_log2, 6);
  EXPECT_EQ(split(shared_keys, 0, 128).split.ctas, 128);
  EXPECT_FALSE(split(decode, 1).is_split());
  EXPECT_EQ(split(decode, 5).split.num_splits, 5);
  EXPECT_EQ(split(decode, 5).split.ctas, 0);
  EXPECT_EQ(split(decode, 200).split.num_splits, 128);  // no more than there are blocks
  ForwardCall few_keys = decode;
  few_keys.seqlen_k = 200;
  EXPECT_FALSE(split(few_keys, 0).is_split());
  ForwardCall long_queries = decode;
  long_queries.q.rows = long_queries.seqlen_q = 8192;
  EXPECT_FALSE(split(long_queries, 0, 128).is_split());
}

// What was measured on one H200, docs/lab/decoding.md: splitting what is done sooner in
// whole tiles costs up to four times their time.
TEST(SplitKv, is_made_where_it_pays) {
  struct Measured {
    int64_t dim, heads, kv_heads, queries, keys;
    bool split;
  };
  constexpr Measured kMeasured[] = {
      {128, 8, 8, 512, 512, false},    {128, 8, 8, 1024, 1024, false},
      {128, 8, 8, 1536, 1536, false},  {128, 8, 8, 2048, 2048, false},
      {128, 32, 8, 64, 1024, true},    {128, 32, 8, 128, 1024, false},
      {64, 12, 12, 512, 512, false},   {64, 12, 12, 1024, 1024, false},
      {64, 12, 12, 1536, 1536, false}, {64, 12, 12, 128, 1024, false},
      {64, 12, 12, 1024, 4096, false}, {128, 8, 8, 1, 512, false},
      {128, 8, 8, 1, 1024, true},      {128, 8, 8, 256, 2048, true},
      {128, 8, 8, 512, 2048, true},    {128, 8, 8, 512, 4096, true},
      {128, 8, 8, 1024, 4096, true},   {128, 16, 16, 512, 4096, true},
      {128, 16, 16, 1, 1024, true},    {128, 32, 8, 1, 1024, true},
      {64, 12, 12, 256, 2048, true},   {64, 12, 12, 512, 4096, true},
      {64, 12, 12, 64, 1024, false},   {64, 12, 12, 1, 1024, true},
      {128, 8, 8, 128, 1024, true},    {128, 16, 16, 512, 2048, true},
  };
  for (const Measured& m : kMeasured) {
    const Problem p = plain(1, m.heads, m.kv_heads, m.queries, m.keys, m.dim);
    EXPECT_EQ(chosen_for(p).tiling.is_split(), m.split)
        << m.heads << " heads of " << m.dim << ", " << m.queries << " queries, " << m.keys
        << " keys";
    EXPECT_TRUE(!m.split || chosen_kernel(p).can_split());
  }
}

TEST(SplitKv, short_ranges_are_one_an_sm_and_tiles_are_not_split_for_little) {
  const auto runs = [](int64_t batch, int64_t keys) {
    return chosen_for(decoding(batch, keys)).tiling.split.ctas;
  };
  EXPECT_EQ(runs(1, 2048), 128);
  EXPECT_EQ(runs(1, 32768), 128);
  EXPECT_EQ(runs(8, 2048), 128);
  EXPECT_EQ(runs(8, 8192), 256);   // four a tile, of which 264 would split each a fifth time
  EXPECT_EQ(runs(17, 5000), 264);  // 136 would leave half of the CTAs idle
}

TEST(SplitKv, counts_the_keys_that_a_window_shows) {
  Problem p = decoding(1, 100000);
  EXPECT_TRUE(chosen_for(p).tiling.is_split());
  p.mask.left = 64;
  EXPECT_FALSE(chosen_for(p).tiling.is_split());
}

// Whole tiles of lengths that only the device knows could leave most SMs waiting for one. A tile
// holds as many heads as fill it; the others' runs lie side by side. TMA loads what lies in no
// pages.
TEST(SplitKv, evens_out_lengths_that_are_unknown) {
  struct Chosen {
    int block_m, heads, groups_log2;
    bool split, uses_cp_async;
    bool operator==(const Chosen&) const = default;
  };
  const auto choice = [](int64_t batch, int64_t queries, int64_t keys, int64_t dim = 128) {
    const Problem p = several_tokens(batch, queries, keys, dim);
    const Tiling tiling = chosen_for(p).tiling;
    Kernel c = chosen_kernel(p);
    c.tiles = Tiles::kSplit;
    return Chosen{c.shape.block_m, tiling.pack.heads(), tiling.split.groups_log2, tiling.is_split(),
                  cp_async_keys(c, call_of(p)).active};
  };
  EXPECT_EQ(choice(32, 16, 8192), (Chosen{128, 8, 3, true, false}));
  EXPECT_EQ(choice(32, 24, 8192), (Chosen{128, 4, 2, true, false}));  // 96 rows twice, not 192
  EXPECT_EQ(choice(8, 64, 8192), (Chosen{128, 2, 5, true, false}));   // four packs
  // Two packs that share keys for long: 33 CTAs a row. Sixteen rows would leave four of 132 idle.
  EXPECT_EQ(choice(32, 32, 8192), (Chosen{128, 4, 2, true, false}));
  EXPECT_EQ(choice(32, 32, 2048), (Chosen{128, 4, 4, true, false}));
  // Where each tile has a CTA at once: half of the longest is worth a combine, or it is not.
  EXPECT_TRUE(choice(8, 16, 2048).split);
  EXPECT_FALSE(choice(8, 16, 1024).split);
  EXPECT_FALSE(choice(8, 32, 1024).split);
  EXPECT_FALSE(choice(128, 32, 8192).split);  // many tiles even out by themselves
  EXPECT_FALSE(choice(32, 16, 768).split);    // keys that take no longer than a combine
  EXPECT_EQ(choice(32, 16, 8192, 64), (Chosen{128, 8, 3, true, false}));
  EXPECT_FALSE(choice(8, 4096, 4096).split);      // tiles of unequal lengths by their mask
  EXPECT_EQ(choice(128, 32, 8192).block_m, 128);  // that waste a third in tiles of 192 rows
}

TEST(BatchInvariance, head_dims_group_and_splits_alone_decide) {
  const auto chosen = [](const Problem& p) {
    const auto [row, tiling] = chosen_for(p);
    const auto& [pack, scheduler, split] = tiling;
    return std::array{int(row - kForward.data()), pack.heads(), int(scheduler), split.num_splits,
                      split.ctas};
  };
  for (const int64_t dim : {64, 96, 128, 192, 256}) {
    for (const int num_splits : {0, 1, 2, 40}) {
      std::set<std::array<int, 5>> free, invariant;
      for (const int64_t batch : {1, 100}) {
        for (const int64_t queries : {1, 40, 5000}) {
          for (const int64_t keys : {30, 1000, 100000}) {
            Problem p = plain();
            p.batch = batch;
            p.heads_q = 16;
            p.head_dim = p.head_dim_v = dim;
            p.num_splits = num_splits;
            p.lengths_q = {.max = queries, .total = batch * queries, .varlen = true};
            p.lengths_k = {.max = keys, .total = batch * keys, .varlen = true};
            free.insert(chosen(p));
            p.batch_invariant = true;
            invariant.insert(chosen(p));
          }
        }
      }
      EXPECT_EQ(invariant.size(), 1u) << dim << ", " << num_splits;
      if (num_splits == 0) {
        EXPECT_GT(free.size(), 1u) << dim;
      }
      EXPECT_EQ((*invariant.begin())[3], std::max(num_splits, 1));
    }
  }
}

}  // namespace
}  // namespace fa3::hopper
