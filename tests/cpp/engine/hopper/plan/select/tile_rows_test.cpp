// SPDX-License-Identifier: Apache-2.0
// How many rows tiles have: what fills the SMs, and what wastes none.
#include <gtest/gtest.h>

#include "engine/hopper/config/consumer_tuning.h"
#include "engine/hopper/plan/plain_problem.h"

namespace fa3::hopper {
namespace {

// Tiles of 64 rows come in splits for two CTAs an SM, those of 128 in half as many.
TEST(Rows, that_leave_fewer_splits_to_combine_are_chosen) {
  const auto block_m = [](int64_t batch, int64_t queries, int64_t keys, int64_t dim = 128) {
    return chosen_kernel(several_tokens(batch, queries, keys, dim)).shape.block_m;
  };
  EXPECT_EQ(block_m(4, 8, 32768), 128);
  EXPECT_EQ(block_m(4, 5, 32768), 128);
  EXPECT_EQ(block_m(4, 4, 32768), 64);  // 32 rows
  EXPECT_EQ(block_m(1, 8, 32768), 64);  // runs are one an SM as it is
  EXPECT_EQ(block_m(32, 8, 8192), 64);  // few splits, which the decoding kernel combines
  EXPECT_EQ(block_m(4, 8, 32768, 64), 128);
}

int rows_of_whole_tiles(const Problem& p) {
  EXPECT_FALSE(chosen_for(p).tiling.is_split());
  return chosen_kernel(p).shape.block_m;
}

// Tiles of 192 rows would leave a third of the SMs idle, or come in two waves for one and a
// third: those of 128 rows take two thirds to three quarters of their time (measured).
TEST(Rows, that_fill_the_sms_better_are_chosen) {
  const auto block_m = [](int64_t heads, int64_t kv_heads, int64_t queries, int64_t keys,
                          int64_t dim = 128) {
    return rows_of_whole_tiles(plain(1, heads, kv_heads, queries, keys, dim));
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
  const auto problem = [](int64_t batch, int64_t heads, int64_t kv_heads, int64_t length) {
    Problem p = plain(batch, heads, kv_heads, length, length);
    p.mask.right = 0;
    p.num_splits = 1;
    return p;
  };
  const auto block_m = [&](int64_t batch, int64_t heads, int64_t kv_heads, int64_t length) {
    return rows_of_whole_tiles(problem(batch, heads, kv_heads, length));
  };
  for (const int64_t heads : {4, 8}) {
    EXPECT_EQ(block_m(1, heads, heads, 4096), 128) << heads;
    EXPECT_EQ(block_m(1, heads, 1, 4096), 128) << heads;
  }
  EXPECT_EQ(block_m(1, 2, 2, 8192), 128);
  EXPECT_EQ(block_m(1, 16, 16, 4096), 192);  // 352 tiles, half as long on average
  EXPECT_EQ(block_m(8, 16, 16, 2048), 192);
  EXPECT_EQ(block_m(1, 4, 4, 16384), 192);
  Problem split = problem(1, 4, 4, 4096);  // in pairs
  split.num_splits = 0;
  EXPECT_EQ(chosen_kernel(split).shape.block_m, 128);
}

// A wider kernel multiplies zeros: it is for what needs its keys split or copied by threads. The
// paper's cases: 16k tokens, 2048 columns of all heads.
TEST(Rows, of_whole_tiles_have_no_wider_kernel) {
  for (const int64_t dim : {64, 96, 128, 192, 256}) {
    for (int64_t length = 512; length <= 16384; length *= 2) {
      for (const int64_t right : {int64_t{0}, MaskRule{}.right}) {
        Problem p = plain(16384 / length, 2048 / dim, 2048 / dim, length, length, dim);
        p.mask.right = right;
        EXPECT_EQ(chosen_kernel(p).shape.head_dim, dim) << length;
        EXPECT_FALSE(chosen_for(p).tiling.is_split()) << dim << ", " << length;
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
      const Kernel& c = chosen_kernel(p);
      EXPECT_GE(c.shape.head_dim, dim);
      EXPECT_TRUE(stores_any_rows(c)) << dim;
    }
  }
}

// Measured at 64 columns: 256 tiles under a causal map take 33 us an SM each, 40 in pairs; 512 in
// pairs 52 us instead of 54 (docs/lab/masks.md).
TEST(Rows, of_few_listed_tiles_have_an_sm_each) {
  const auto ctas_per_sm = [](int64_t heads, int64_t keys, int64_t dim) {
    Problem p = plain(1, heads, heads, keys, keys, dim);
    p.block_mask.on = true;
    const Kernel& c = chosen_kernel(p);
    EXPECT_EQ(c.shape.head_dim, dim);
    return c.shape.ctas_per_sm;
  };
  EXPECT_EQ(ctas_per_sm(16, 2048, 64), 1);
  EXPECT_EQ(ctas_per_sm(32, 2048, 64), 2);
  EXPECT_EQ(ctas_per_sm(16, 4096, 64), 2);
  EXPECT_EQ(ctas_per_sm(1, 2048, 128), 1);
  EXPECT_EQ(ctas_per_sm(16, 8192, 128), 1);
}

}  // namespace
}  // namespace fa3::hopper
