// SPDX-License-Identifier: Apache-2.0
// Calls with few queries of few sequences have kernels that always split, or find tiles by number.
#include <gtest/gtest.h>

#include <tuple>

#include "engine/hopper/plan/plain_problem.h"

namespace fa3::hopper {
namespace {

TEST(SelectStreamK, has_kernels_of_its_own_for_few_queries_of_few_sequences) {
  const auto is_stream_k = [](const auto& change) {
    Problem p = decoding(4, 8192);
    p.lengths_k.varlen = true;
    change(p);
    return chosen_kernel(p).tiles == Tiles::kStreamK;
  };
  EXPECT_TRUE(is_stream_k([](Problem&) {}));
  EXPECT_TRUE(is_stream_k([](Problem& p) { p.batch = 32; }));
  for (const auto& [batch, queries, soon_merged] :
       {std::tuple{1, 2, true}, {1, 3, false}, {8, 4, true}, {32, 8, true}}) {
    EXPECT_EQ(is_stream_k([&](Problem& p) { p.batch = batch, p.lengths_q.max = queries; }),
              soon_merged)
        << batch << " sequences, " << queries << " queries of 8 heads each";
  }
  for (const int64_t dim : {64, 128, 256}) {
    EXPECT_TRUE(is_stream_k([&](Problem& p) { p.head_dim = p.head_dim_v = dim; })) << dim;
  }
  EXPECT_FALSE(is_stream_k([](Problem& p) { p.batch = 1, p.heads_q = 32, p.heads_k = 2; }))
      << "16 rows of 67 partials";
  EXPECT_FALSE(is_stream_k([](Problem& p) { p.batch = 33; }));
  EXPECT_FALSE(
      is_stream_k([](Problem& p) { p.lengths_q.max = 9, p.head_dim = p.head_dim_v = 192; }));
  EXPECT_FALSE(is_stream_k([](Problem& p) { p.mask.left = 4096; }));
  EXPECT_FALSE(is_stream_k([](Problem& p) { p.mask.chunk = 4096; }));
  EXPECT_FALSE(is_stream_k([](Problem& p) { p.softcap = 30; }));
  EXPECT_FALSE(is_stream_k([](Problem& p) { p.o.dtype = DType::float32; }));
  EXPECT_FALSE(is_stream_k([](Problem& p) { p.num_splits = 1; }));
  EXPECT_FALSE(is_stream_k([](Problem& p) { p.num_splits = 4; }));
}

// Tiles of 128 rows: whole in up to two waves, unless evenness or idle SMs are worth a combine.
TEST(SelectStreamK, has_a_kernel_of_its_own_for_more_queries_of_few_sequences) {
  const auto chosen = [](const auto& change) {
    Problem p = several_tokens(8, 16, 1024, 128);
    change(p);
    const auto [row, tiling] = chosen_for(p);
    if (row->kernel.tiles != Tiles::kStreamK) return Scheduler::kVarlenMetadata;
    EXPECT_EQ(row->kernel.shape.block_m, 128);
    return tiling.scheduler;
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

// At least as many tiles as ranges.
TEST(SelectStreamK, leaves_few_splits_a_tile_to_the_cta_that_opens_it) {
  const auto opens = [](int64_t batch, int64_t keys, int64_t dim = 128) {
    const Problem p = several_tokens(batch, 16, keys, dim);
    const auto [row, tiling] = chosen_for(p);
    EXPECT_EQ(row->kernel.tiles, Tiles::kStreamK);
    EXPECT_TRUE(tiling.is_split());
    return tiling.split.opener_combines;
  };
  EXPECT_TRUE(opens(32, 8192));
  EXPECT_TRUE(opens(16, 4096));
  EXPECT_TRUE(opens(16, 4096, 64));
  EXPECT_FALSE(opens(8, 2048));
  EXPECT_FALSE(opens(1, 16384));
}

TEST(SelectStreamK, has_kernels_of_its_own_for_quantized_caches) {
  for (const int64_t dim : {64, 128, 256}) {
    Problem p = decoding(4, 8192);
    p.head_dim = p.head_dim_v = dim;
    p.kv_dtype = DType::float8_e4m3;
    const Kernel& c = chosen_kernel(p);
    EXPECT_EQ(c.tiles, Tiles::kStreamK) << dim;
    EXPECT_TRUE(c.dequantizes()) << dim;
    EXPECT_EQ(c.shape.head_dim, dim);
  }
}

}  // namespace
}  // namespace fa3::hopper
