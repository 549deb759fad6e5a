// SPDX-License-Identifier: Apache-2.0
// How many tiles there are, in which order, and when each has an SM.
#include <gtest/gtest.h>

#include "engine/hopper/plan/count_tiles.h"
#include "engine/hopper/plan/plain_problem.h"
#include "engine/hopper/plan/plan_forward.h"

namespace fa3::hopper {
namespace {

// Groups of tiles are counted as one head with as many times more query blocks.
TEST(TileOrder, has_as_many_tiles_where_some_come_together) {
  Problem p = plain();
  p.batch = 6;
  p.mask = MaskRule{.right = 0};
  const ForwardCall call = call_of(p);
  const Kernel& c = chosen_kernel(p);
  const TileOrder alone = tile_order(c, call, PackGqa{}, kSms);
  for (const TilesTogether together : {TilesTogether{2, 1}, {1, 3}, {2, 2}}) {
    const TileOrder groups = tile_order(c, call, PackGqa{}, kSms, together);
    EXPECT_EQ(groups.num_m_blocks, alone.num_m_blocks * together.count());
    EXPECT_EQ(groups.num_packs, alone.num_packs / together.packs);
    EXPECT_EQ(groups.num_batches, alone.num_batches / together.batches);
    EXPECT_EQ(groups.num_tiles(), alone.num_tiles());
    EXPECT_LE(groups.tail_heads, groups.num_packs * groups.num_batches);
  }
}

// Rows of a map are 128 queries. The call has 16 heads of 128 columns, or 32 of 64, which two CTAs
// an SM take.
TEST(TileOrder, lists_go_longest_first_for_four_waves_of_ctas_or_more) {
  const auto tail_heads = [](int64_t keys, int64_t dim) {
    Problem p = plain(1, 2048 / dim, 2048 / dim, keys, keys, dim);
    p.block_mask.on = true;
    const Kernel& c = chosen_kernel(p);
    EXPECT_EQ(c.shape.ctas_per_sm, dim == 64 ? 2 : 1);
    return tile_order(c, call_of(p), PackGqa{}, kSms).tail_heads;
  };
  EXPECT_EQ(tail_heads(4096, 128), 16);
  EXPECT_EQ(tail_heads(8192, 128), 9);
  EXPECT_EQ(tail_heads(32768, 128), 5);
  EXPECT_EQ(tail_heads(4096, 64), 32);
  EXPECT_EQ(tail_heads(8192, 64), 17);
  EXPECT_EQ(tail_heads(32768, 64), 9);
}

// 16 query heads of 128 rows a tile. Keys and values of a head and a thousand keys have 0.625 MiB
// at head dims 192 and 128, and 1 MiB at 256.
TEST(TileOrder, a_causal_tail_has_keys_and_values_of_64_mib_or_two_heads) {
  const auto tail_heads = [](int64_t keys, int64_t dim, int64_t dim_v, int64_t kv_heads) {
    Problem p = plain(1, 16, kv_heads, keys, keys, dim);
    p.head_dim_v = dim_v;
    p.mask = MaskRule{.right = 0};
    const Kernel& c = chosen_kernel(p);
    EXPECT_EQ(c.shape.block_m, 128);
    return tile_order(c, call_of(p), PackGqa{}, kSms).tail_heads;
  };
  EXPECT_EQ(tail_heads(8192, 192, 128, 16), 9);  // four waves of SMs
  EXPECT_EQ(tail_heads(16384, 192, 128, 16), 6);
  EXPECT_EQ(tail_heads(16384, 192, 128, 8), 9);  // two query heads share them
  EXPECT_EQ(tail_heads(65536, 192, 128, 16), 2);
  EXPECT_EQ(tail_heads(16384, 256, 256, 16), 4);
}

// Tiles of 128 rows, an SM each, of kernels that find tiles themselves.
TEST(DirectTiles, are_those_of_varlen_calls_that_fit_one_wave) {
  struct Plan {
    bool direct;
    int64_t workspace;
  };
  const auto planned = [](int64_t sequences, int64_t keys, bool varlen, bool packed,
                          bool for_any_batch = false) {
    Problem p = plain();
    p.batch = sequences;
    p.num_splits = 1;
    p.batch_invariant = for_any_batch;
    static const int32_t starts[] = {0};
    p.lengths_q = {.max = 300, .total = sequences * 300};
    p.lengths_k = {.max = keys, .total = sequences * keys};
    p.lengths_k.varlen = varlen;
    if (packed) {
      p.lengths_q.cu_seqlens = starts;
      p.lengths_q.varlen = p.lengths_q.in_one_tensor = true;
    }
    const auto [row, tiling] = chosen_for(p);
    return Plan{tiling.scheduler == Scheduler::kDirect,
                plan_launch({row->kernel}, call_of(p), tiling, kSms).workspace.bytes};
  };
  EXPECT_TRUE(planned(11, 1000, true, false).direct) << "132 tiles";
  EXPECT_EQ(planned(11, 1000, true, false).workspace, 0);
  EXPECT_FALSE(planned(12, 1000, true, false).direct) << "144 tiles";
  EXPECT_GT(planned(12, 1000, true, false).workspace, 0);
  EXPECT_FALSE(planned(2, 1000, false, false).direct) << "one length";
  EXPECT_TRUE(planned(11, 1000, true, true).direct);
  EXPECT_FALSE(planned(12, 1000, true, true).direct);
  EXPECT_FALSE(planned(7, 9000, true, true).direct) << "three warpgroups";
  EXPECT_FALSE(planned(2, 1000, true, false, true).direct) << "the same for every batch";
}

}  // namespace
}  // namespace fa3::hopper
