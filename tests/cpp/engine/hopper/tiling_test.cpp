// SPDX-License-Identifier: Apache-2.0
// What a call's tiles are: which heads share them, whether keys are cut, which size fills the GPU.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "engine/hopper/choose_stream.h"
#include "engine/hopper/choose_tiles.h"
#include "engine/hopper/compiled_decode.h"
#include "engine/hopper/plan_e4m3.h"
#include "engine/hopper/stream/compiled_stream.h"
#include "plain_problem.h"

namespace fa3::hopper {
namespace {

TEST(PackedHeads, share_a_tile_where_that_saves_tiles_or_masked_work) {
  constexpr ForwardConfig kConfig{.block_m = 128};
  const auto packed = [&](int64_t queries, int group, bool causal) {
    ForwardLaunch launch;
    launch.q.batches = 1;
    launch.q.heads = 2 * group;
    launch.q.rows = queries;
    launch.seqlen_q = int(queries);
    launch.heads_per_kv_head = group;
    if (causal) launch.mask.right = 0;
    return choose_pack(kConfig, launch).heads();
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

TEST(KeyCut, cuts_few_queries_and_leaves_many_alone) {
  constexpr int kMultiprocessors = 132;
  ForwardLaunch decode;
  decode.q.batches = decode.sequences = 4;
  decode.q.heads = 64;
  decode.q.rows = decode.seqlen_q = 1;
  decode.o.columns = 128;
  decode.heads_per_kv_head = 8;
  decode.seqlen_k = 8192;
  decode.mask.right = 0;
  const auto cut = [&](ForwardLaunch launch, int num_splits, int block_m = 64) {
    ForwardConfig config{.block_m = block_m, .block_n = 64, .may_cut = true};
    choose_cut(config, num_splits, kMultiprocessors, &launch);
    return launch;
  };
  const ForwardLaunch shared = cut(decode, 0);
  EXPECT_EQ(shared.cut.parts, KeyCut::kRuns);
  EXPECT_EQ(shared.cut.rows_log2, 3);  // a row for each of the 8 packs of heads
  EXPECT_EQ(shared.cut.blocks, 128);
  EXPECT_EQ(shared.pack.heads(), 8);
  ForwardLaunch many_heads = decode;  // 40 packs, of which 8 rows hold as many each
  many_heads.q.heads = 320;
  EXPECT_EQ(cut(many_heads, 0).cut.rows_log2, 3);
  EXPECT_EQ(cut(many_heads, 0).cut.blocks, 128);
  ForwardLaunch shared_keys = decode;  // by eight packs, which four rows would part
  shared_keys.q.rows = shared_keys.seqlen_q = 128;
  shared_keys.q.columns = 128;
  shared_keys.ragged = true;
  EXPECT_EQ(cut(shared_keys, 0, 128).cut.rows_log2, 6);
  EXPECT_EQ(cut(shared_keys, 0, 128).cut.blocks, 128);
  EXPECT_FALSE(cut(decode, 1).cut.active());
  EXPECT_EQ(cut(decode, 5).cut.parts, 5);
  EXPECT_EQ(cut(decode, 5).cut.blocks, 0);
  EXPECT_EQ(cut(decode, 200).cut.parts, 128);  // no more than there are blocks
  ForwardLaunch few_keys = decode;
  few_keys.seqlen_k = 200;
  EXPECT_FALSE(cut(few_keys, 0).cut.active());
  ForwardLaunch long_queries = decode;
  long_queries.q.rows = long_queries.seqlen_q = 8192;
  EXPECT_FALSE(cut(long_queries, 0, 128).cut.active());
}

// What was measured on one H200, docs/performance-decoding.md: cutting what is done sooner in whole tiles
// costs up to four times their time. 12 heads of 64, 1024 queries on 4096 keys are 3% slower for being cut.
TEST(KeyCut, is_made_where_it_pays) {
  struct Measured {
    int64_t dim, heads, kv_heads, queries, keys;
    bool cut;
  };
  constexpr Measured kMeasured[] = {
      {128, 8, 8, 512, 512, false},    {128, 8, 8, 1024, 1024, false},
      {128, 8, 8, 1536, 1536, false},  {128, 8, 8, 2048, 2048, false},
      {128, 32, 8, 64, 1024, true},    {128, 32, 8, 128, 1024, false},
      {64, 12, 12, 512, 512, false},   {64, 12, 12, 1024, 1024, false},
      {64, 12, 12, 1536, 1536, false}, {64, 12, 12, 128, 1024, false},
      {64, 12, 12, 1024, 4096, true},  {128, 8, 8, 1, 512, false},
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
    ForwardLaunch launch = launch_of(p);
    const int row = choose_row_and_cut(p, 132, &launch);
    EXPECT_EQ(launch.cut.active(), m.cut) << m.heads << " heads of " << m.dim << ", " << m.queries
                                          << " queries, " << m.keys << " keys";
    EXPECT_TRUE(!launch.cut.active() || kForwardTable[size_t(row)].config.may_cut);
  }
}

// A step of decoding: 64 query heads, 8 key heads, causal.
Problem decoding(int64_t batch, int64_t keys) {
  Problem p = plain();
  p.batch = batch;
  p.heads_q = 64;
  p.heads_k = 8;
  p.lengths_q.max = 1;
  p.lengths_k.max = keys;
  p.mask.right = 0;
  return p;
}

TEST(KeyCut, short_runs_are_one_a_multiprocessor_and_tiles_are_not_cut_for_little) {
  const auto runs = [](int64_t batch, int64_t keys) {
    const Problem p = decoding(batch, keys);
    ForwardLaunch launch = launch_of(p);
    choose_row_and_cut(p, 132, &launch);
    return launch.cut.blocks;
  };
  EXPECT_EQ(runs(1, 2048), 128);
  EXPECT_EQ(runs(1, 32768), 128);
  EXPECT_EQ(runs(8, 2048), 128);
  EXPECT_EQ(runs(8, 8192), 256);   // four a tile, of which 264 would cut each a fifth time
  EXPECT_EQ(runs(17, 5000), 264);  // 136 would leave half of the thread blocks idle
}

TEST(KeyCut, counts_the_keys_that_a_window_shows) {
  Problem p = decoding(1, 100000);
  ForwardLaunch launch = launch_of(p);
  choose_row_and_cut(p, 132, &launch);
  EXPECT_TRUE(launch.cut.active());
  p.mask.left = 64;
  launch = launch_of(p);
  choose_row_and_cut(p, 132, &launch);
  EXPECT_FALSE(launch.cut.active());
}

TEST(Decoding, has_kernels_of_its_own_for_few_queries_of_few_sequences) {
  const auto decodes = [](const auto& change) {
    Problem p = decoding(4, 8192);
    p.lengths_k.ragged = true;
    change(p);
    ForwardLaunch launch = launch_of(p);
    const int row = choose_row_and_cut(p, 132, &launch);
    return choose_decode_row(p, row, launch) != kNoRow;
  };
  EXPECT_TRUE(decodes([](Problem&) {}));
  EXPECT_TRUE(decodes([](Problem& p) { p.batch = 32; }));
  for (const auto& [batch, queries, soon_merged] :
       {std::tuple{1, 2, true}, {1, 3, false}, {8, 4, true}, {12, 8, false}, {32, 8, true}}) {
    EXPECT_EQ(decodes([&](Problem& p) { p.batch = batch, p.lengths_q.max = queries; }), soon_merged)
        << batch << " sequences, " << queries << " queries of 8 heads each";
  }
  for (const int64_t dim : {64, 128, 256}) {
    EXPECT_TRUE(decodes([&](Problem& p) { p.head_dim = p.head_dim_v = dim; })) << dim;
  }
  EXPECT_FALSE(decodes([](Problem& p) { p.batch = 1, p.heads_q = 32, p.heads_k = 2; }))
      << "16 rows of 67 pieces";
  EXPECT_FALSE(decodes([](Problem& p) { p.batch = 33; }));
  EXPECT_FALSE(decodes([](Problem& p) { p.lengths_q.max = 9; }));
  EXPECT_FALSE(decodes([](Problem& p) { p.mask.left = 4096; }));
  EXPECT_FALSE(decodes([](Problem& p) { p.mask.chunk = 4096; }));
  EXPECT_FALSE(decodes([](Problem& p) { p.softcap = 30; }));
  EXPECT_FALSE(decodes([](Problem& p) { p.o.dtype = DType::float32; }));
  EXPECT_FALSE(decodes([](Problem& p) { p.num_splits = 1; }));
  EXPECT_FALSE(decodes([](Problem& p) { p.num_splits = 4; }));
}

// Of sequences whose lengths only the device knows.
Problem several_tokens(int64_t batch, int64_t queries, int64_t keys, int64_t dim) {
  Problem p = decoding(batch, keys);
  p.head_dim = p.head_dim_v = dim;
  p.lengths_q.max = queries;
  p.lengths_k.ragged = true;
  return p;
}

// Whole tiles of lengths that only the device knows could leave most multiprocessors waiting for one. A tile
// holds as many heads as fill it; the others' runs lie side by side. The copy engine loads
// what lies in no pages.
TEST(KeyCut, evens_out_lengths_that_are_unknown) {
  struct Chosen {
    int block_m, heads, rows_log2;
    bool cut, gathers;
    bool operator==(const Chosen&) const = default;
  };
  const auto choice = [](int64_t batch, int64_t queries, int64_t keys, int64_t dim = 128) {
    const Problem p = several_tokens(batch, queries, keys, dim);
    ForwardLaunch launch = launch_of(p);
    const int row = choose_row_and_cut(p, 132, &launch);
    const ForwardConfig c = kForwardTable[size_t(row)].config;
    return Chosen{c.block_m, launch.pack.heads(), launch.cut.rows_log2, launch.cut.active(),
                  gathers_keys(c.with(c.element, Variant::kGeneral), launch)};
  };
  EXPECT_EQ(choice(32, 16, 8192), (Chosen{128, 8, 3, true, false}));
  EXPECT_EQ(choice(32, 24, 8192), (Chosen{128, 4, 2, true, false}));  // 96 rows twice, not 192
  EXPECT_EQ(choice(8, 64, 8192), (Chosen{128, 2, 5, true, false}));   // four packs
  // Two packs that share keys for long: 33 thread blocks a row. Sixteen rows would leave four of 132 idle.
  EXPECT_EQ(choice(32, 32, 8192), (Chosen{128, 4, 2, true, false}));
  EXPECT_EQ(choice(32, 32, 2048), (Chosen{128, 4, 4, true, false}));
  // Where each tile has a thread block at once: half of the longest is worth a merge, or it is not.
  EXPECT_TRUE(choice(8, 16, 2048).cut);
  EXPECT_FALSE(choice(8, 16, 1024).cut);
  EXPECT_FALSE(choice(8, 32, 1024).cut);
  EXPECT_FALSE(choice(128, 32, 8192).cut);        // many tiles even out by themselves
  EXPECT_FALSE(choice(32, 16, 768).cut);          // keys that take no longer than a merge
  EXPECT_FALSE(choice(32, 16, 8192, 64).cut);     // no kernel of these columns cuts so many rows
  EXPECT_FALSE(choice(8, 4096, 4096).cut);        // tiles of unequal lengths by their mask
  EXPECT_EQ(choice(128, 32, 8192).block_m, 128);  // that waste a third in tiles of 192 rows
}

// Tiles of 64 rows come in pieces for two thread blocks a multiprocessor, those of 128 in half as many.
TEST(Rows, that_leave_fewer_pieces_to_a_merge_are_chosen) {
  const auto block_m = [](int64_t batch, int64_t queries, int64_t keys, int64_t dim = 128) {
    const Problem p = several_tokens(batch, queries, keys, dim);
    ForwardLaunch launch = launch_of(p);
    return kForwardTable[size_t(choose_row_and_cut(p, 132, &launch))].config.block_m;
  };
  EXPECT_EQ(block_m(4, 8, 32768), 128);
  EXPECT_EQ(block_m(4, 5, 32768), 128);
  EXPECT_EQ(block_m(4, 4, 32768), 64);      // 32 rows
  EXPECT_EQ(block_m(1, 8, 32768), 64);      // runs are one a multiprocessor as it is
  EXPECT_EQ(block_m(32, 8, 8192), 64);      // few pieces, which the decoding kernel merges
  EXPECT_EQ(block_m(4, 8, 32768, 64), 64);  // no wider kernel of these columns cuts
}

// A row of kStreamTable for few query rows, and how its tiles are dealt.
struct Streamed {
  int head_dim = 0, rows = 0;
  bool by_parts = false;
  int clusters = 0, cluster = 0;  // of thread blocks
  bool operator==(const Streamed&) const = default;
};
Streamed streamed(const Problem& p) {
  ForwardLaunch launch = launch_of(p);
  const StreamChoice choice = choose_stream(p, 132, &launch);
  if (choice.row == kNoRow) return {};
  const ForwardConfig& c = kStreamTable[size_t(choice.row)].config;
  EXPECT_EQ(c.widens(), p.has_e4m3());
  return {c.head_dim, c.block_m, choice.variant == Variant::kStreamTile, launch.cut.blocks,
          1 << launch.cut.cluster_log2};
}

TEST(Streams, do_one_sequence_in_clusters) {
  const auto one = [](int64_t keys, const auto& change) {
    Problem p = several_tokens(1, 1, keys, 128);
    change(p);
    return streamed(p);
  };
  const auto as_it_is = [](Problem&) {};
  const auto two_heads = [](Problem& p) { p.heads_q = 16, p.heads_k = 2; };
  EXPECT_EQ(one(700, as_it_is), (Streamed{128, 8, true, 8, 8}));
  EXPECT_EQ(one(2048, as_it_is), (Streamed{128, 8, true, 8, 8}));
  EXPECT_EQ(one(131072, as_it_is), (Streamed{128, 8, true, 8, 8}));  // half of the multiprocessors
  EXPECT_EQ(one(400, as_it_is), Streamed{});
  EXPECT_EQ(one(2048, [](Problem& p) { p.lengths_q.max = 2; }), (Streamed{128, 16, true, 8, 8}));
  EXPECT_EQ(one(2048, [](Problem& p) { p.lengths_q.max = 3; }), Streamed{});
  EXPECT_EQ(one(2048, [](Problem& p) { p.head_dim = p.head_dim_v = 64; }),
            (Streamed{64, 8, true, 8, 8}));
  EXPECT_EQ(one(2048, [](Problem& p) { p.head_dim = p.head_dim_v = 256; }),
            (Streamed{256, 8, true, 8, 8}));
  EXPECT_EQ(one(2048, two_heads), (Streamed{128, 8, true, 2, 16}));
  EXPECT_EQ(one(6144, two_heads), (Streamed{128, 8, true, 2, 16}));
  EXPECT_EQ(one(6145, two_heads), (Streamed{128, 8, true, 8, 8}));  // four parts a tile
  const auto one_head = [](Problem& p) { p.heads_q = 8, p.heads_k = 1; };
  EXPECT_EQ(one(4096, one_head), (Streamed{128, 8, true, 1, 16}));
  EXPECT_EQ(one(4097, one_head), (Streamed{128, 8, true, 8, 8}));
  EXPECT_EQ(one(2048, [](Problem& p) { p.heads_q = 16, p.heads_k = 2, p.lengths_q.max = 2; }),
            (Streamed{128, 16, true, 4, 8}));  // sixteen would need as many multiprocessors
  EXPECT_EQ(one(65536, [](Problem& p) { p.heads_k = 4; }), (Streamed{128, 16, true, 8, 8}));
  EXPECT_EQ(one(65536, [](Problem& p) { p.heads_q = 32, p.heads_k = 4; }),
            (Streamed{128, 8, true, 4, 16}));
  // Rows that threads copy: half of the multiprocessors are too few from 48 MB on.
  const auto small_pages = [](Problem& p) {
    p.key_places = {.page_size = 1, .entries = 1, .elsewhere = true};
    p.key_places.pages = p.lengths_k.max;
  };
  EXPECT_EQ(one(8192, small_pages), (Streamed{128, 8, true, 8, 8}));
  EXPECT_EQ(one(32768, small_pages), (Streamed{128, 8, true, 64, 2}));
  EXPECT_EQ(one(65536, small_pages), Streamed{});
  const auto many_heads = [](Problem& p) { p.heads_q = p.heads_k = 32; };
  EXPECT_EQ(one(8192, many_heads), (Streamed{128, 8, true, 32, 2}));
  EXPECT_EQ(one(16384, many_heads), Streamed{});  // more than 160 MB
  EXPECT_EQ(one(2048, [](Problem& p) { p.heads_q = p.heads_k = 33; }), Streamed{});
  for (const auto& change :
       {+[](Problem& p) { p.mask.left = 100; }, +[](Problem& p) { p.softcap = 30; },
        +[](Problem& p) { p.o.dtype = DType::float32; }, +[](Problem& p) { p.num_splits = 4; },
        +[](Problem& p) { p.num_splits = 1; }, +[](Problem& p) { p.batch_invariant = true; }}) {
    EXPECT_EQ(one(2048, change), Streamed{});
  }
}

TEST(Streams, do_several_sequences_of_few_bytes) {
  const auto several = [](int64_t batch, int64_t keys, int64_t dim = 128) {
    return streamed(several_tokens(batch, 1, keys, dim));
  };
  EXPECT_EQ(several(8, 2048), (Streamed{128, 8, false, 64, 2}));
  EXPECT_EQ(several(64, 512), (Streamed{128, 8, false, 128, 1}));
  EXPECT_EQ(several(5, 8192), (Streamed{128, 8, false, 64, 2}));  // 160 MB
  EXPECT_EQ(several(6, 8192), Streamed{});
  EXPECT_EQ(several(8, 8192, 64), (Streamed{64, 8, false, 64, 2}));
  EXPECT_EQ(several(0, 8192), Streamed{});
}

TEST(Streams, do_quantized_caches_of_any_number_of_sequences) {
  const auto quantized = [](int64_t batch, int64_t queries, int64_t keys, int64_t dim) {
    Problem p = several_tokens(batch, queries, keys, dim);
    p.kv_dtype = DType::float8_e4m3;
    return streamed(p);
  };
  EXPECT_EQ(quantized(8, 1, 8192, 128), (Streamed{128, 8, false, 64, 2}));
  EXPECT_EQ(quantized(128, 1, 8192, 128), (Streamed{128, 8, false, 128, 1}));
  EXPECT_EQ(quantized(32, 2, 8192, 128), (Streamed{128, 16, false, 128, 1}));
  EXPECT_EQ(quantized(32, 1, 8192, 64), (Streamed{64, 8, false, 128, 1}));
  // One sequence's: all multiprocessors from 32 MB on, under 16 rows from 16 MB on.
  EXPECT_EQ(quantized(1, 1, 16383, 128), (Streamed{128, 8, true, 8, 8}));
  EXPECT_EQ(quantized(1, 1, 16384, 128), (Streamed{128, 8, true, 64, 2}));
  EXPECT_EQ(quantized(1, 2, 8191, 128), (Streamed{128, 16, true, 8, 8}));
  EXPECT_EQ(quantized(1, 2, 8192, 128), (Streamed{128, 16, true, 64, 2}));
  EXPECT_EQ(quantized(32, 3, 8192, 128), Streamed{});
}

TEST(Decoding, has_kernels_of_its_own_for_quantized_caches) {
  for (const int64_t dim : {64, 128, 256}) {
    Problem p = decoding(4, 8192);
    p.head_dim = p.head_dim_v = dim;
    p.kv_dtype = DType::float8_e4m3;
    ForwardLaunch launch = launch_of(p);
    const int row = choose_decode_row(p, choose_row_and_cut(p, 132, &launch), launch);
    ASSERT_NE(row, kNoRow) << dim;
    EXPECT_TRUE(kDecodeTable[size_t(row)].config.widens()) << dim;
    EXPECT_EQ(kDecodeTable[size_t(row)].config.head_dim, dim);
  }
}

// Tiles of 192 rows would leave a third of the multiprocessors idle, or come in two waves for one and a
// third: those of 128 rows take two thirds to three quarters of their time (measured).
TEST(Rows, that_fill_the_multiprocessors_better_are_chosen) {
  const auto block_m = [](int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys) {
    Problem p = plain();
    p.batch = 1;
    p.heads_q = heads;
    p.heads_k = kv_heads;
    p.lengths_q.max = queries;
    p.lengths_k.max = keys;
    ForwardLaunch launch = launch_of(p);
    const int row = choose_row_and_cut(p, 132, &launch);
    EXPECT_FALSE(launch.cut.active());
    return kForwardTable[size_t(row)].config.block_m;
  };
  EXPECT_EQ(block_m(8, 8, 2048, 2048), 128);
  EXPECT_EQ(block_m(16, 16, 2048, 2048), 128);
  EXPECT_EQ(block_m(32, 8, 512, 4096), 128);
  EXPECT_EQ(block_m(32, 8, 1024, 4096), 128);
  EXPECT_EQ(block_m(12, 12, 2048, 2048), 192);  // 132 tiles
  EXPECT_EQ(block_m(128, 128, 2048, 2048), 192);
}

// A wider kernel multiplies zeros: it is for what needs its keys cut or copied by threads. The paper's
// cases: 16k tokens, 2048 columns of all heads.
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
        ForwardLaunch launch = launch_of(p);
        const int row = choose_row_and_cut(p, 132, &launch);
        EXPECT_EQ(kForwardTable[size_t(row)].config.head_dim, dim) << length;
        EXPECT_FALSE(launch.cut.active()) << dim << ", " << length;
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
      ForwardLaunch launch = launch_of(p);
      const ForwardConfig c = kForwardTable[choose_row_and_cut(p, 132, &launch)].config;
      EXPECT_GE(c.head_dim, dim);
      EXPECT_TRUE(c.with(c.element, Variant::kGeneral).stores_any_rows()) << dim;
    }
  }
}

TEST(BatchInvariance, head_dims_group_and_parts_alone_decide) {
  const auto chosen = [](const Problem& p) {
    ForwardLaunch launch = launch_of(p);
    const int row = choose_row_and_cut(p, 132, &launch);
    return std::array{row, launch.pack.heads(), launch.cut.parts, launch.cut.blocks};
  };
  for (const int64_t dim : {64, 96, 128, 192, 256}) {
    for (const int num_splits : {0, 1, 2, 40}) {
      std::set<std::array<int, 4>> free, invariant;
      for (const int64_t batch : {1, 100}) {
        for (const int64_t queries : {1, 40, 5000}) {
          for (const int64_t keys : {30, 1000, 100000}) {
            Problem p = plain();
            p.batch = batch;
            p.heads_q = 16;
            p.head_dim = p.head_dim_v = dim;
            p.num_splits = num_splits;
            p.lengths_q = {.max = queries, .total = batch * queries, .ragged = true};
            p.lengths_k = {.max = keys, .total = batch * keys, .ragged = true};
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
      EXPECT_EQ((*invariant.begin())[2], std::max(num_splits, 1));
    }
  }
}

}  // namespace
}  // namespace fa3::hopper
