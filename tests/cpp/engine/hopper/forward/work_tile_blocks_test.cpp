// SPDX-License-Identifier: Apache-2.0
// Which softmax steps a warpgroup takes: guarded ones vote over a warp's rows, so all must be
// numbers.
#include "engine/cuda/mask/key_window.h"
#include "engine/hopper/forward/producer/schedule/work_tile_writer.cuh"

#include <gtest/gtest.h>

namespace fa3::hopper {
namespace {

TEST(WorkTileBlocks, steps_are_ordinary_where_rows_past_the_end_may_hold_anything) {
  constexpr Kernel kKernel = Kernel{.tiles = Tiles::kSplit};
  constexpr int kRows = 96, kKeys = 4096;
  ForwardParams params{};
  params.seqlen_q = kRows;
  params.q.columns = kKernel.shape.head_dim;
  const auto guarded = [&](int used) {
    const cuda::QueryRows queries{.count = kRows, .used = used};
    return WorkTileBlocks<kKernel>(params)
               .blocks_of(kRowsPerWarpgroup, queries, kKeys, 0, kAllBlocks)
               .online_from > 0;
  };
  EXPECT_TRUE(guarded(kRows));  // neither listed nor split: the tensor ends here
  params.schedule.block_n = kKernel.shape.block_n;
  EXPECT_TRUE(guarded(kRows));       // zeros behind the tensor's end
  EXPECT_FALSE(guarded(kRows - 1));  // a row that is not used
  params.seqlen_q = kRows + 1;
  EXPECT_FALSE(guarded(kRows));  // a longer sequence's tensor
  params.q_is_clipped = true;
  EXPECT_TRUE(guarded(kRows));  // zeros, wherever a sequence ends
  EXPECT_TRUE(guarded(kRows - 1));
}

}  // namespace
}  // namespace fa3::hopper
