// SPDX-License-Identifier: Apache-2.0
// What a call's tiles are: which heads share them, whether keys are split, which size fills the
// GPU.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/plan/plan_e4m3.h"
#include "engine/hopper/plan/select/choose_kv_loader.h"
#include "engine/hopper/plan/select/choose_split.h"
#include "engine/hopper/plan/select/select_decode.h"
#include "engine/hopper/tables/decode_table.h"
#include "engine/hopper/tables/stream_k_table.h"
#include "plain_problem.h"

namespace fa3::hopper {
namespace {

TEST(PackGqa, share_a_tile_where_that_saves_tiles_or_masked_work) {
  constexpr ForwardConfig kConfig{.block_m = 128};
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
    const ForwardConfig config{.block_m = block_m, .block_n = 64, .may_split = true};
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
    Problem p = plain();
    p.head_dim = p.head_dim_v = m.dim;
    p.batch = 1;
    p.heads_q = m.heads;
    p.heads_k = m.kv_heads;
    p.lengths_q.max = m.queries;
    p.lengths_k.max = m.keys;
    const auto [row, tiling] = chosen_for(p);
    EXPECT_EQ(tiling.is_split(), m.split) << m.heads << " heads of " << m.dim << ", " << m.queries
                                          << " queries, " << m.keys << " keys";
    EXPECT_TRUE(!tiling.is_split() || kForwardTable[size_t(row)].config.may_split);
  }
}

// A step of decoding: 64 query heads, 8 key heads, causal.
Problem stream_k(int64_t batch, int64_t keys) {
  Problem p = plain();
  p.batch = batch;
  p.heads_q = 64;
  p.heads_k = 8;
  p.lengths_q.max = 1;
  p.lengths_k.max = keys;
  p.mask.right = 0;
  return p;
}

TEST(SplitKv, short_ranges_are_one_an_sm_and_tiles_are_not_split_for_little) {
  const auto runs = [](int64_t batch, int64_t keys) {
    const Problem p = stream_k(batch, keys);
    return chosen_for(p).tiling.split.ctas;
  };
  EXPECT_EQ(runs(1, 2048), 128);
  EXPECT_EQ(runs(1, 32768), 128);
  EXPECT_EQ(runs(8, 2048), 128);
  EXPECT_EQ(runs(8, 8192), 256);   // four a tile, of which 264 would split each a fifth time
  EXPECT_EQ(runs(17, 5000), 264);  // 136 would leave half of the CTAs idle
}

TEST(SplitKv, counts_the_keys_that_a_window_shows) {
  Problem p = stream_k(1, 100000);
  EXPECT_TRUE(chosen_for(p).tiling.is_split());
  p.mask.left = 64;
  EXPECT_FALSE(chosen_for(p).tiling.is_split());
}

TEST(SelectStreamK, has_kernels_of_its_own_for_few_queries_of_few_sequences) {
  const auto always_splits = [](const auto& change) {
    Problem p = stream_k(4, 8192);
    p.lengths_k.varlen = true;
    change(p);
    return select_stream_k(p, call_of(p), chosen_for(p), kSms).row != kNoKernel;
  };
  EXPECT_TRUE(always_splits([](Problem&) {}));
  EXPECT_TRUE(always_splits([](Problem& p) { p.batch = 32; }));
  for (const auto& [batch, queries, soon_merged] :
       {std::tuple{1, 2, true}, {1, 3, false}, {8, 4, true}, {32, 8, true}}) {
    EXPECT_EQ(always_splits([&](Problem& p) { p.batch = batch, p.lengths_q.max = queries; }),
              soon_merged)
        << batch << " sequences, " << queries << " queries of 8 heads each";
  }
  for (const int64_t dim : {64, 128, 256}) {
    EXPECT_TRUE(always_splits([&](Problem& p) { p.head_dim = p.head_dim_v = dim; })) << dim;
  }
  EXPECT_FALSE(always_splits([](Problem& p) { p.batch = 1, p.heads_q = 32, p.heads_k = 2; }))
      << "16 rows of 67 partials";
  EXPECT_FALSE(always_splits([](Problem& p) { p.batch = 33; }));
  EXPECT_FALSE(
      always_splits([](Problem& p) { p.lengths_q.max = 9, p.head_dim = p.head_dim_v = 192; }));
  EXPECT_FALSE(always_splits([](Problem& p) { p.mask.left = 4096; }));
  EXPECT_FALSE(always_splits([](Problem& p) { p.mask.chunk = 4096; }));
  EXPECT_FALSE(always_splits([](Problem& p) { p.softcap = 30; }));
  EXPECT_FALSE(always_splits([](Problem& p) { p.o.dtype = DType::float32; }));
  EXPECT_FALSE(always_splits([](Problem& p) { p.num_splits = 1; }));
  EXPECT_FALSE(always_splits([](Problem& p) { p.num_splits = 4; }));
}

// Of sequences whose lengths only the device knows.
Problem several_tokens(int64_t batch, int64_t queries, int64_t keys, int64_t dim) {
  Problem p = stream_k(batch, keys);
  p.head_dim = p.head_dim_v = dim;
  p.lengths_q.max = queries;
  p.lengths_k.varlen = true;
  return p;
}

// Tiles of 128 rows: whole in up to two waves, unless evenness or idle SMs are worth a combine.
TEST(SelectStreamK, has_a_kernel_of_its_own_for_more_queries_of_few_sequences) {
  const auto chosen = [](const auto& change) {
    Problem p = several_tokens(8, 16, 1024, 128);
    change(p);
    const auto [row, tiling] = select_stream_k(p, call_of(p), chosen_for(p), kSms);
    if (row != kNoKernel) EXPECT_EQ(kStreamKTable[size_t(row)].config.block_m, 128);
    return row == kNoKernel ? Scheduler::kVarlenMetadata : tiling.scheduler;
  };
  constexpr auto kWhole = Scheduler::kDirect, kSplit = Scheduler::kStreamK,
                 kOther = Scheduler::kVarlenMetadata;
  EXPECT_EQ(chosen([](Problem&) {}), kWhole);
  EXPECT_EQ(chosen([](Problem& p) { p.lengths_q.max = 64; }), kWhole);  // two heads a tile
  EXPECT_EQ(chosen([](Problem& p) { p.batch = 32; }), kWhole);          // two waves
  const auto three_waves = [](Problem& p) { p.batch = 32, p.lengths_q.max = 24; };
  EXPECT_EQ(chosen(three_waves), kSplit);
  EXPECT_EQ(chosen([&](Problem& p) { three_waves(p), p.lengths_k.max = 700; }), kOther);
  EXPECT_EQ(chosen([](Problem& p) { p.lengths_k.max = 2048; }), kSplit);
  EXPECT_EQ(chosen([](Problem& p) { p.lengths_q.max = 48; }),
            kWhole);                                           // three tiles of eight heads
  EXPECT_EQ(chosen([](Problem& p) { p.batch = 4; }), kSplit);  // most SMs would be idle
  EXPECT_EQ(chosen([](Problem& p) { p.batch = 16, p.lengths_k.max = 2048; }), kWhole);
  EXPECT_EQ(chosen([](Problem& p) { p.batch = 16, p.lengths_k.max = 4096; }), kSplit);
  EXPECT_EQ(chosen([](Problem& p) { p.batch = 16, p.lengths_k.max = 8192; }), kSplit);
  EXPECT_EQ(chosen([](Problem& p) { p.batch = 32, p.lengths_k.max = 8192; }), kSplit);
  EXPECT_EQ(chosen([](Problem& p) { p.num_splits = 1, p.lengths_k.max = 2048; }), kWhole);
  EXPECT_EQ(chosen([](Problem& p) { p.lengths_q.max = 256; }), kOther);  // two tiles a head
  EXPECT_EQ(chosen([](Problem& p) { p.batch = 33; }), kOther);
  EXPECT_EQ(chosen([](Problem& p) { p.mask.left = 512; }), kOther);
  EXPECT_EQ(chosen([](Problem& p) { p.softcap = 30; }), kOther);
  EXPECT_EQ(chosen([](Problem& p) { p.batch_invariant = true; }), kOther);
  EXPECT_EQ(chosen([](Problem& p) { p.lengths_k.varlen = false; }), kOther);
  EXPECT_EQ(chosen([](Problem& p) { p.num_splits = 4; }), kOther);
}

// Whole tiles of lengths that only the device knows could leave most SMs waiting for one. A tile
// holds as many heads as fill it; the others' runs lie side by side. TMA loads
// what lies in no pages.
TEST(SplitKv, evens_out_lengths_that_are_unknown) {
  struct Chosen {
    int block_m, heads, groups_log2;
    bool split, uses_cp_async;
    bool operator==(const Chosen&) const = default;
  };
  const auto choice = [](int64_t batch, int64_t queries, int64_t keys, int64_t dim = 128) {
    const Problem p = several_tokens(batch, queries, keys, dim);
    const auto [row, tiling] = chosen_for(p);
    const ForwardConfig c = kForwardTable[size_t(row)].config;
    return Chosen{c.block_m, tiling.pack.heads(), tiling.split.groups_log2, tiling.is_split(),
                  cp_async_keys(c.with(c.element, Variant::kGeneral), call_of(p)).active};
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

// Tiles of 64 rows come in splits for two CTAs an SM, those of 128 in half as many.
TEST(Rows, that_leave_fewer_splits_to_combine_are_chosen) {
  const auto block_m = [](int64_t batch, int64_t queries, int64_t keys, int64_t dim = 128) {
    const Problem p = several_tokens(batch, queries, keys, dim);
    return kForwardTable[size_t(chosen_for(p).row)].config.block_m;
  };
  EXPECT_EQ(block_m(4, 8, 32768), 128);
  EXPECT_EQ(block_m(4, 5, 32768), 128);
  EXPECT_EQ(block_m(4, 4, 32768), 64);  // 32 rows
  EXPECT_EQ(block_m(1, 8, 32768), 64);  // runs are one an SM as it is
  EXPECT_EQ(block_m(32, 8, 8192), 64);  // few splits, which the decoding kernel combines
  EXPECT_EQ(block_m(4, 8, 32768, 64), 128);
}

// A row of kDecodeTable for few query rows, and how its tiles are dealt.
struct Decoded {
  int head_dim = 0, rows = 0;
  bool is_single = false;
  int clusters = 0, cluster = 0;  // of CTAs
  bool operator==(const Decoded&) const = default;
};
Decoded decoded(const Problem& p) {
  const auto [row, variant, tiling] = select_decode(p, call_of(p), kSms);
  if (row == kNoKernel) return {};
  const ForwardConfig& c = kDecodeTable[size_t(row)].config;
  EXPECT_EQ(c.dequantizes(), p.has_float8());
  return {c.head_dim, c.block_m, variant == Variant::kDecodeSingle, tiling.split.ctas,
          1 << tiling.split.cluster_log2};
}

TEST(SelectDecode, do_one_sequence_in_clusters) {
  const auto one = [](int64_t keys, const auto& change) {
    Problem p = several_tokens(1, 1, keys, 128);
    change(p);
    return decoded(p);
  };
  const auto as_it_is = [](Problem&) {};
  const auto two_heads = [](Problem& p) { p.heads_q = 16, p.heads_k = 2; };
  EXPECT_EQ(one(700, as_it_is), (Decoded{128, 8, true, 8, 8}));
  EXPECT_EQ(one(2048, as_it_is), (Decoded{128, 8, true, 8, 8}));
  EXPECT_EQ(one(131072, as_it_is), (Decoded{128, 8, true, 8, 8}));  // half of the SMs
  EXPECT_EQ(one(400, as_it_is), Decoded{});
  EXPECT_EQ(one(2048, [](Problem& p) { p.lengths_q.max = 2; }), (Decoded{128, 16, true, 8, 8}));
  EXPECT_EQ(one(2048, [](Problem& p) { p.lengths_q.max = 3; }), Decoded{});
  EXPECT_EQ(one(2048, [](Problem& p) { p.head_dim = p.head_dim_v = 64; }),
            (Decoded{64, 8, true, 8, 8}));
  EXPECT_EQ(one(2048, [](Problem& p) { p.head_dim = p.head_dim_v = 256; }),
            (Decoded{256, 8, true, 8, 8}));
  EXPECT_EQ(one(2048, two_heads), (Decoded{128, 8, true, 2, 16}));
  EXPECT_EQ(one(6144, two_heads), (Decoded{128, 8, true, 2, 16}));
  EXPECT_EQ(one(6145, two_heads), (Decoded{128, 8, true, 8, 8}));  // four parts a tile
  const auto one_head = [](Problem& p) { p.heads_q = 8, p.heads_k = 1; };
  EXPECT_EQ(one(4096, one_head), (Decoded{128, 8, true, 1, 16}));
  EXPECT_EQ(one(4097, one_head), (Decoded{128, 8, true, 8, 8}));
  EXPECT_EQ(one(2048, [](Problem& p) { p.heads_q = 16, p.heads_k = 2, p.lengths_q.max = 2; }),
            (Decoded{128, 16, true, 4, 8}));  // sixteen would need as many SMs
  EXPECT_EQ(one(65536, [](Problem& p) { p.heads_k = 4; }), (Decoded{128, 16, true, 8, 8}));
  EXPECT_EQ(one(65536, [](Problem& p) { p.heads_q = 32, p.heads_k = 4; }),
            (Decoded{128, 8, true, 4, 16}));
  // Rows that threads copy: half of the SMs are too few from 48 MB on.
  const auto small_pages = [](Problem& p) {
    p.key_places = {.page_size = 1, .entries = 1, .elsewhere = true};
    p.key_places.pages = p.lengths_k.max;
  };
  EXPECT_EQ(one(8192, small_pages), (Decoded{128, 8, true, 8, 8}));
  EXPECT_EQ(one(32768, small_pages), (Decoded{128, 8, true, 64, 2}));
  EXPECT_EQ(one(65536, small_pages), Decoded{});
  const auto many_heads = [](Problem& p) { p.heads_q = p.heads_k = 32; };
  EXPECT_EQ(one(8192, many_heads), (Decoded{128, 8, true, 32, 2}));
  EXPECT_EQ(one(16384, many_heads), Decoded{});  // more than 160 MB
  EXPECT_EQ(one(2048, [](Problem& p) { p.heads_q = p.heads_k = 33; }), Decoded{});
  for (const auto& change :
       {+[](Problem& p) { p.mask.left = 100; }, +[](Problem& p) { p.softcap = 30; },
        +[](Problem& p) { p.o.dtype = DType::float32; }, +[](Problem& p) { p.num_splits = 4; },
        +[](Problem& p) { p.num_splits = 1; }, +[](Problem& p) { p.batch_invariant = true; }}) {
    EXPECT_EQ(one(2048, change), Decoded{});
  }
}

TEST(SelectDecode, do_several_sequences_of_few_bytes) {
  const auto several = [](int64_t batch, int64_t keys, int64_t dim = 128) {
    return decoded(several_tokens(batch, 1, keys, dim));
  };
  EXPECT_EQ(several(8, 2048), (Decoded{128, 8, false, 64, 2}));
  EXPECT_EQ(several(64, 512), (Decoded{128, 8, false, 128, 1}));
  EXPECT_EQ(several(5, 8192), (Decoded{128, 8, false, 64, 2}));  // 160 MB
  EXPECT_EQ(several(6, 8192), Decoded{});
  EXPECT_EQ(several(8, 8192, 64), (Decoded{64, 8, false, 64, 2}));
  EXPECT_EQ(several(0, 8192), Decoded{});
}

TEST(SelectDecode, do_quantized_caches_of_any_number_of_sequences) {
  const auto quantized = [](int64_t batch, int64_t queries, int64_t keys, int64_t dim) {
    Problem p = several_tokens(batch, queries, keys, dim);
    p.kv_dtype = DType::float8_e4m3;
    return decoded(p);
  };
  EXPECT_EQ(quantized(8, 1, 8192, 128), (Decoded{128, 8, false, 64, 2}));
  EXPECT_EQ(quantized(128, 1, 8192, 128), (Decoded{128, 8, false, 128, 1}));
  EXPECT_EQ(quantized(32, 2, 8192, 128), (Decoded{128, 16, false, 128, 1}));
  EXPECT_EQ(quantized(32, 1, 8192, 64), (Decoded{64, 8, false, 128, 1}));
  // One sequence's: all SMs from 32 MB on, under 16 rows from 16 MB on.
  EXPECT_EQ(quantized(1, 1, 16383, 128), (Decoded{128, 8, true, 8, 8}));
  EXPECT_EQ(quantized(1, 1, 16384, 128), (Decoded{128, 8, true, 64, 2}));
  EXPECT_EQ(quantized(1, 2, 8191, 128), (Decoded{128, 16, true, 8, 8}));
  EXPECT_EQ(quantized(1, 2, 8192, 128), (Decoded{128, 16, true, 64, 2}));
  EXPECT_EQ(quantized(32, 3, 8192, 128), Decoded{});
}

TEST(SelectStreamK, has_kernels_of_its_own_for_quantized_caches) {
  for (const int64_t dim : {64, 128, 256}) {
    Problem p = stream_k(4, 8192);
    p.head_dim = p.head_dim_v = dim;
    p.kv_dtype = DType::float8_e4m3;
    const int row = select_stream_k(p, call_of(p), chosen_for(p), kSms).row;
    ASSERT_NE(row, kNoKernel) << dim;
    EXPECT_TRUE(kStreamKTable[size_t(row)].config.dequantizes()) << dim;
    EXPECT_EQ(kStreamKTable[size_t(row)].config.head_dim, dim);
  }
}

// Tiles of 192 rows would leave a third of the SMs idle, or come in two waves for one and a
// third: those of 128 rows take two thirds to three quarters of their time (measured).
TEST(Rows, that_fill_the_sms_better_are_chosen) {
  const auto block_m = [](int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys,
                          int64_t dim = 128) {
    Problem p = plain();
    p.head_dim = p.head_dim_v = dim;
    p.batch = 1;
    p.heads_q = heads;
    p.heads_k = kv_heads;
    p.lengths_q.max = queries;
    p.lengths_k.max = keys;
    const auto [row, tiling] = chosen_for(p);
    EXPECT_FALSE(tiling.is_split());
    return kForwardTable[size_t(row)].config.block_m;
  };
  EXPECT_EQ(block_m(8, 8, 2048, 2048), 128);
  EXPECT_EQ(block_m(16, 16, 2048, 2048), 128);
  EXPECT_EQ(block_m(32, 8, 512, 4096), 128);
  EXPECT_EQ(block_m(32, 8, 1024, 4096), 128);
  EXPECT_EQ(block_m(12, 12, 2048, 2048), 192);  // 132 tiles
  EXPECT_EQ(block_m(128, 128, 2048, 2048), 192);
  EXPECT_EQ(block_m(8, 8, 4096, 4096, 64), 128);    // 171 tiles of 192 rows, two waves either way
  EXPECT_EQ(block_m(12, 12, 2048, 2048, 64), 192);  // 132 tiles
  EXPECT_EQ(block_m(32, 32, 16384, 16384, 64), 192);
}

// The longest of 192 rows sees all keys and takes three halves of the time of one of 128 rows. That
// is the call's time where a few heads have fewer tiles than two for each SM.
TEST(Rows, of_few_causal_tiles_are_shorter) {
  const auto block_m = [](int64_t batch, int64_t heads, int64_t kv_heads, int64_t length) {
    Problem p = plain();
    p.batch = batch;
    p.heads_q = heads;
    p.heads_k = kv_heads;
    p.lengths_q.max = p.lengths_k.max = length;
    p.mask.right = 0;
    const auto [row, tiling] = chosen_for(p);
    EXPECT_FALSE(tiling.is_split());
    return kForwardTable[size_t(row)].config.block_m;
  };
  for (const int64_t heads : {1, 4, 8}) {
    EXPECT_EQ(block_m(1, heads, heads, 4096), 128) << heads;
    EXPECT_EQ(block_m(1, heads, 1, 4096), 128) << heads;
  }
  EXPECT_EQ(block_m(1, 1, 1, 16384), 128);
  EXPECT_EQ(block_m(1, 16, 16, 4096), 192);  // 352 tiles, half as long on average
  EXPECT_EQ(block_m(8, 16, 16, 2048), 192);
  EXPECT_EQ(block_m(1, 4, 4, 16384), 192);
}

// A wider kernel multiplies zeros: it is for what needs its keys split or copied by threads. The
// paper's cases: 16k tokens, 2048 columns of all heads.
TEST(Rows, of_whole_tiles_have_no_wider_kernel) {
  for (const int64_t dim : {64, 96, 128, 192, 256}) {
    for (int64_t length = 512; length <= 16384; length *= 2) {
      for (const int64_t right : {int64_t{0}, MaskRule{}.right}) {
        Problem p = plain();
        p.head_dim = p.head_dim_v = dim;
        p.batch = 16384 / length;
        p.heads_q = p.heads_k = 2048 / dim;
        p.lengths_q.max = p.lengths_k.max = length;
        p.mask.right = right;
        const auto [row, tiling] = chosen_for(p);
        EXPECT_EQ(kForwardTable[size_t(row)].config.head_dim, dim) << length;
        EXPECT_FALSE(tiling.is_split()) << dim << ", " << length;
      }
    }
  }
}

TEST(Rows, of_any_kind_have_a_kernel_for_every_head_dim) {
  for (const int64_t dim : {1, 64, 90, 96, 128, 191, 256}) {
    for (const int64_t queries : {1, 5000}) {
      Problem p = plain();
      p.head_dim = p.head_dim_v = dim;
      p.o.dtype = DType::float32;
      p.lengths_q.max = queries;
      const ForwardConfig c = kForwardTable[size_t(chosen_for(p).row)].config;
      EXPECT_GE(c.head_dim, dim);
      EXPECT_TRUE(consumer_tuning(c.with(c.element, Variant::kGeneral)).stores_any_rows) << dim;
    }
  }
}

TEST(BatchInvariance, head_dims_group_and_splits_alone_decide) {
  const auto chosen = [](const Problem& p) {
    const auto [row, tiling] = chosen_for(p);
    const auto& [pack, scheduler, split] = tiling;
    return std::array{row, pack.heads(), int(scheduler), split.num_splits, split.ctas};
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
