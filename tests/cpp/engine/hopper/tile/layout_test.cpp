// SPDX-License-Identifier: Apache-2.0
// Tiles in shared memory: the swizzle, the steps of a product through them, the descriptors.
#include "engine/hopper/tile/layout.h"

#include <gtest/gtest.h>

#include <set>

#include "engine/hopper/catalogue.h"

namespace fa3::hopper::tile {
namespace {

// Every tile that some compiled kernel keeps in shared memory.
std::vector<TileLayout> layouts() {
  std::vector<TileLayout> all;
  for (const Row& row : rows_with(is_plain)) {
    const Kernel& c = row.kernel;
    all.push_back({c.shape.block_m, c.shape.head_dim});
    all.push_back({c.shape.block_n, c.shape.head_dim});
    all.push_back({c.shape.block_n, c.shape.head_dim_v});
    all.push_back({c.shape.block_m, c.shape.head_dim_v});
  }
  for (const Row& row : rows_with([](const Row& row) { return row.kernel.e4m3(); })) {
    const Kernel& c = row.kernel;
    all.insert(all.end(), {c.tiles_in_smem().q, c.tiles_in_smem().k, c.tiles_in_smem().v});
  }
  return all;
}

// The hardware's own rule: within an atom of 8 rows, address bits 4.. are XORed with bits 7..
int swizzled_by_address_bits(const TileLayout& t, int row, int column) {
  const int linear = column / t.slab_columns() * t.slab_bytes() + row * t.row_bytes() +
                     column % t.slab_columns() * t.element_bytes;
  const int mask = t.row_bytes() == 128 ? 0x70 : 0x30;
  return linear ^ ((linear >> 3) & mask);
}

TEST(Layout, every_element_has_its_own_place_and_the_tile_is_full) {
  for (const TileLayout& t : layouts()) {
    std::set<int> places;
    for (int row = 0; row < t.rows; ++row) {
      for (int column = 0; column < t.columns; ++column) {
        places.insert(t.element_offset(row, column));
      }
    }
    EXPECT_EQ(places.size(), size_t(t.rows) * t.columns);
    EXPECT_EQ(*places.begin(), 0);
    EXPECT_EQ(*places.rbegin(), t.bytes() - t.element_bytes);
  }
}

TEST(Layout, swizzle_is_the_hardwares) {
  for (const TileLayout& t : layouts()) {
    for (int row = 0; row < t.rows; ++row) {
      for (int column = 0; column < t.columns; ++column) {
        ASSERT_EQ(t.element_offset(row, column), swizzled_by_address_bits(t, row, column))
            << "row " << row << " column " << column << " of " << t.rows << "x" << t.columns;
      }
    }
  }
}

// What threads that copy rows add up (load_cp_async.cuh).
TEST(Layout, a_chunk_lies_alike_in_every_eight_rows_and_every_slab) {
  for (const TileLayout& t : layouts()) {
    for (int row = 0; row < t.rows; ++row) {
      for (int column = 0; column < t.columns; ++column) {
        const int slab = column / t.slab_columns(), eight = row / kSwizzleRows;
        ASSERT_EQ(t.chunk_offset(row, column),
                  t.chunk_offset(row % kSwizzleRows, column % t.slab_columns()) +
                      eight * kSwizzleRows * t.row_bytes() + slab * t.slab_bytes());
      }
    }
  }
}

TEST(Layout, steps_along_columns_start_where_their_columns_do) {
  for (const TileLayout& t : layouts()) {
    for (int step = 0; step < t.columns / t.mma_depth(); ++step) {
      EXPECT_EQ(t.k_major_step(step),
                t.element_offset(0, step * t.mma_depth()));  // row 0 is not permuted
    }
  }
}

TEST(Layout, steps_along_rows_start_where_their_rows_do) {
  for (const TileLayout& t : layouts()) {
    for (int step = 0; step < t.rows / t.mma_depth(); ++step) {
      EXPECT_EQ(t.mn_major_step(step), t.element_offset(step * t.mma_depth(), 0));
    }
  }
}

// wgmma reads 8 rows of one chunk at a time (a core matrix): they must fall into different banks.
TEST(Layout, eight_rows_of_a_chunk_share_no_bank) {
  for (const TileLayout& t : layouts()) {
    for (int column = 0; column < t.columns; column += 8) {
      std::set<int> bank_groups;
      for (int row = 0; row < 8; ++row) {
        bank_groups.insert(t.chunk_offset(row, column) / kChunkBytes % 8);
      }
      EXPECT_EQ(bank_groups.size(), 8u);
    }
  }
}

TEST(Descriptor, fields_are_where_the_hardware_reads_them) {
  const TileLayout t{128, 256};  // four slabs of 128 rows of 128 bytes
  constexpr uint32_t kAddress = 0x1fc00;
  const uint64_t k_major = descriptor(t, k_major_low(kAddress), 0);
  EXPECT_EQ(k_major & 0x3fff, kAddress >> 4);
  EXPECT_EQ(k_major >> 32 & 0x3fff, 1024u >> 4);
  EXPECT_EQ(k_major >> 62, 1u);
  const uint64_t mn_major = descriptor(t, mn_major_low(t, kAddress), 0);
  EXPECT_EQ(mn_major >> 16 & 0x3fff, 128u * 128 >> 4);
  EXPECT_EQ(mn_major >> 32 & 0x3fff, 1024u >> 4);

  const TileLayout narrow{96, 96};  // three slabs of 96 rows of 64 bytes
  EXPECT_EQ(descriptor(narrow, mn_major_low(narrow, 0), 0) >> 16 & 0x3fff, 96u * 64 >> 4);
  EXPECT_EQ(descriptor(narrow, k_major_low(0), 0) >> 32 & 0x3fff, 512u >> 4);
  EXPECT_EQ(descriptor(narrow, k_major_low(0), 0) >> 62, 2u);
}

TEST(Descriptor, advancing_through_the_largest_tile_never_carries_out_of_the_address) {
  for (const TileLayout& t : layouts()) {
    const uint32_t low = k_major_low((kMaxSmemBytes - t.bytes()) / 1024 * 1024);
    for (int step = 0; step < t.columns / t.mma_depth(); ++step) {
      EXPECT_EQ(descriptor(t, low, t.k_major_step(step)) >> 14, descriptor(t, low, 0) >> 14);
    }
  }
}

}  // namespace
}  // namespace fa3::hopper::tile
