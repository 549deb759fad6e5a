// SPDX-License-Identifier: Apache-2.0
//
// In pairs of CTAs P lies in shared memory where dS will.
#include <gtest/gtest.h>

#include <set>

#include "engine/hopper/backward/backward_kernel.cuh"
#include "engine/hopper/catalogue.h"

namespace fa3::hopper {
namespace {

// P first lies where dS will: each warp's in the bytes of its own dS, for warps do not wait for
// each other between the two (Buffer::strips).
TEST(BackwardProtocol, of_a_pair_P_of_a_warp_lies_where_its_dS_will) {
  constexpr BackwardConfig kConfig = kBackwardTiles.back().kernel;
  static_assert(kConfig.pairs());
  constexpr tile::TileLayout kDs = kConfig.ds_tile();
  constexpr int kChunk = tile::kChunkBytes, kSteps = kConfig.shape.block_m / kRowsPerWarp;
  std::set<uint32_t> all;
  for (int warp = 0; warp < kWarpsPerWarpgroup; ++warp) {
    std::set<uint32_t> of_p, of_ds;
    for (int thread = warp * kWarpSize; thread < (warp + 1) * kWarpSize; ++thread) {
      threadIdx.x = unsigned(thread);
      const auto [query, key] = tile::stored_place_transposed(thread);
      for (int step = 0; step < kSteps; ++step) {
        of_p.insert(ScoreTile<kConfig>::packed_place(0, step));
        of_ds.insert(uint32_t(kDs.chunk_offset(query + step * kRowsPerWarp, key)));
      }
    }
    EXPECT_EQ(of_p, of_ds) << "warp " << warp;
    EXPECT_EQ(of_p.size(), size_t(kWarpSize * kSteps));
    for (const uint32_t chunk : of_p) {
      EXPECT_EQ(chunk % kChunk, 0u);
      const uint32_t strip = chunk % 128 / (128 / kWarpsPerWarpgroup);
      const uint32_t row = chunk / 128;
      EXPECT_EQ(strip ^ (row % 8 / 2), uint32_t(warp));  // as swizzled; of lane 0's rows as it is
    }
    all.merge(of_p);
  }
  EXPECT_EQ(all.size() * kChunk, size_t(kDs.bytes()));
}

}  // namespace
}  // namespace fa3::hopper
