// SPDX-License-Identifier: Apache-2.0
// How keys come into shared memory: boxes of TMA, of which pages have small ones, or copies by
// threads.
#include <gtest/gtest.h>

#include "engine/hopper/plan/plain_problem.h"
#include "engine/hopper/plan/select/select.h"

namespace fa3::hopper {
namespace {

// Three warpgroups read small pages by one thread's boxes; whose tiles have 80 keys, those of 256
// too.
TEST(PageBoxes, that_would_be_small_ask_for_another_kernel) {
  const auto chosen = [](int64_t dim, int64_t page_size) {
    Problem p = plain();
    p.head_dim = p.head_dim_v = dim;
    p.num_splits = 1;
    p.lengths_q = {.max = 5000, .total = 5000};
    p.lengths_k = {.max = 5120, .total = 5120};
    p.key_places = {.page_size = page_size, .entries = 1, .elsewhere = page_size > 0};
    if (page_size > 0) p.key_places.pages = 5120 / page_size;
    return chosen_kernel(p);
  };
  EXPECT_EQ(chosen(128, 0).consumers(), 3);
  for (const int64_t page_size : {1, 16, 64, 256}) {
    EXPECT_TRUE(chosen(128, page_size).can_split()) << page_size;
    EXPECT_TRUE(chosen(96, page_size).can_split()) << page_size;
  }
  EXPECT_TRUE(chosen(64, 16).can_split());
  EXPECT_EQ(chosen(64, 256).consumers(), 3) << "boxes of 128 rows";
}

TEST(PageBoxes, divide_a_page_and_a_tile) {
  constexpr Kernel kConfig{.shape = {.block_n = 80}};
  const auto rows = [&](int64_t page_size, bool padded_left) {
    ForwardCall call;
    call.places.page_size = page_size;
    call.lengths_k.padded_left = padded_left;
    return kv_box_rows(kConfig, call);
  };
  EXPECT_EQ(rows(0, true), 80);
  EXPECT_EQ(rows(16, false), 16);
  EXPECT_EQ(rows(7, false), 1);
  EXPECT_EQ(rows(100, false), 20);
  EXPECT_EQ(rows(640, false), 80);
  EXPECT_EQ(rows(64, true), 1);
}

TEST(CpAsyncKeys, are_those_of_few_queries_or_of_pages_whose_boxes_are_small) {
  constexpr Kernel kMany = Kernel{.tiles = Tiles::kSplit};
  constexpr Kernel kFew = Kernel{.shape = {.block_m = 64, .block_n = 64}, .tiles = Tiles::kSplit};
  constexpr Kernel kNotSplit = Kernel{.tiles = Tiles::kVarlen};
  const auto cp_async = [](const Kernel& c, int64_t page_size, int columns = 128) {
    ForwardCall call;
    call.places.page_size = page_size;
    call.k = {nullptr, 10, page_size, 8, 128, page_size * 1024, 1024, 128};
    call.v = call.k;
    call.v.columns = columns;
    return cp_async_keys(c, call).active;
  };
  EXPECT_TRUE(cp_async(kMany, 1));
  EXPECT_TRUE(cp_async(kMany, 32));
  EXPECT_TRUE(cp_async(kMany, 48));
  EXPECT_FALSE(cp_async(kMany, 64));
  EXPECT_FALSE(cp_async(kMany, 256));
  EXPECT_TRUE(cp_async(kFew, 256));
  EXPECT_FALSE(cp_async(kMany, 0)) << "no pages";
  EXPECT_TRUE(cp_async(kFew, 0));
  EXPECT_FALSE(cp_async(kFew, 16, 124)) << "rows end within 16 bytes";
  EXPECT_FALSE(cp_async(kNotSplit, 16)) << "no registers for it";
}

// The place of a row is a 31-bit multiple of what divides the strides of rows and pages.
TEST(CpAsyncKeys, rows_lie_at_multiples_of_a_unit_or_are_left_to_the_copy_engine) {
  constexpr Kernel kConfig = Kernel{.tiles = Tiles::kSplit};
  ForwardCall call;
  call.places.page_size = 16;
  // Pages of heads of rows.
  call.k = {nullptr, int64_t{1} << 24, 16, 8, 128, 8 * 16 * 128, 128, 16 * 128};
  call.v = call.k;
  EXPECT_TRUE(cp_async_keys(kConfig, call).active);
  call.v.batch_stride += 8;
  EXPECT_FALSE(cp_async_keys(kConfig, call).active)
      << "units of 16 bytes do not reach the last page";
  call.v.batches = 1;
  EXPECT_TRUE(cp_async_keys(kConfig, call).active) << "a stride that nobody uses";
}

}  // namespace
}  // namespace fa3::hopper
