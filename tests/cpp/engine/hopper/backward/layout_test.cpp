// SPDX-License-Identifier: Apache-2.0
// The backward's tiles on the host: what stmatrix writes and what wgmma reads of them, played by
// plain loops after the PTX ISA, are the elements the products are about; and the order in which dQ
// is summed is undone by what turns it into rows.
#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <utility>

#include "engine/hopper/catalogue.h"
#include "engine/hopper/tile/stored_matrix.h"

namespace fa3::hopper {
namespace {

using tile::TileLayout;

constexpr int kElementBytes = bytes_of(Element::kBf16);
constexpr int kDepth = tile::kMmaBytes / kElementBytes;  // of one product

// Element (row, column) of the accumulator of a thread.
std::pair<int, int> place(int thread, int element) {
  return {fragment_row(thread) + fragment_row_index(element) * kRowDistance,
          fragment_column(element) + fragment_lane_column(thread)};
}

// Where stmatrix.x4 puts element `half` of register `matrix` of `thread`: in the row whose address
// lane 8 * matrix + l / 4 gives, as its elements 2 * (l % 4) + {0, 1}; with .trans, in the row of
// lane 8 * matrix + 2 * (l % 4) + {0, 1}, as its element l / 4.
template <typename Address>
int stored_at(int thread, int matrix, int half, bool transposed, Address address_of) {
  const int lane = thread % kWarpSize, warp_start = thread - lane;
  const int across = 2 * (lane % 4) + half, down = lane / 4;
  return transposed ? address_of(warp_start + 8 * matrix + across) + down * kElementBytes
                    : address_of(warp_start + 8 * matrix + down) + across * kElementBytes;
}

TEST(StoredMatrix, dk_and_dv_lie_as_their_tile_says) {
  for (const int columns : {64, 96, 128, 192, 256}) {
    const TileLayout layout{kRowsPerWarpgroup, columns};
    for (int thread = 0; thread < kWarpgroupSize; ++thread) {
      for (int element = 0; element < columns / 2; ++element) {
        const int step = element / 8, matrix = element / 2 % 4, half = element % 2;
        const int at = stored_at(thread, matrix, half, false, [&](int giver) {
          const tile::StoredPlace p = tile::stored_place(giver);
          return layout.chunk_offset(p.row, step * kDepth + p.column);
        });
        const auto [row, column] = place(thread, element);
        ASSERT_EQ(at, layout.element_offset(row, column)) << thread << " " << element;
      }
    }
  }
}

constexpr auto kAllBackwardTiles = join(kBackwardTiles, kRowsForSomeDenseCalls);

TEST(StoredMatrix, ds_lies_transposed_queries_by_keys) {
  for (const BackwardRow& compiled : kAllBackwardTiles) {
    const BackwardConfig& c = compiled.kernel;
    const TileLayout layout = c.ds_tile();
    for (int warpgroup = 0; warpgroup < c.key_warpgroups(); ++warpgroup) {
      const int first_key = warpgroup * kRowsPerWarpgroup;
      for (int thread = 0; thread < kWarpgroupSize; ++thread) {
        for (int element = 0; element < c.shape.block_m / 2; ++element) {
          const int step = element / 8, matrix = element / 2 % 4, half = element % 2;
          const int at = stored_at(thread, matrix, half, true, [&](int giver) {
            const tile::StoredPlace p = tile::stored_place_transposed(giver);
            return layout.chunk_offset(p.row, first_key + p.column) +
                   step * kDepth * layout.row_bytes();
          });
          const auto [key, query] = place(thread, element);
          ASSERT_EQ(at, layout.element_offset(query, first_key + key));
        }
      }
    }
  }
}

// The byte that wgmma reads as element (i, k) of a 16-deep operand, i along M or N. PTX ISA,
// "strides" of a matrix in shared memory and its swizzling, which works on address bits.
uint32_t read_at(uint64_t descriptor, bool k_major, int i, int k) {
  const uint32_t start = uint32_t(descriptor & 0x3fff) << 4;
  const uint32_t leading = uint32_t(descriptor >> 16 & 0x3fff) << 4;
  const uint32_t stride = uint32_t(descriptor >> 32 & 0x3fff) << 4;
  const uint32_t width = descriptor >> 62 == tile::kSwizzle128 ? 128 : 64;
  const int span = int(width) / kElementBytes;  // elements of a row of the pattern
  const uint32_t linear =
      k_major ? start + uint32_t(i / 8) * stride + uint32_t(i % 8) * width + uint32_t(k) * 2
              : start + uint32_t(i / span) * leading + uint32_t(k / 8) * stride +
                    uint32_t(k % 8) * width + uint32_t(i % span) * 2;
  return linear ^ ((linear >> 3) & (width == 128 ? 0x70u : 0x30u));
}

constexpr uint32_t kBase = 0x4000;

// Rows [first, first + rows) of a tile, summed over its columns.
void expect_k_major(TileLayout t, int first, int rows) {
  const uint32_t low = tile::k_major_low(kBase + uint32_t(first * t.row_bytes()));
  for (int step = 0; step < t.columns / kDepth; ++step) {
    const uint64_t descriptor = tile::descriptor(t, low, t.k_major_step(step));
    for (int i = 0; i < rows; ++i) {
      for (int k = 0; k < kDepth; ++k) {
        ASSERT_EQ(read_at(descriptor, true, i, k),
                  kBase + uint32_t(t.element_offset(first + i, step * kDepth + k)));
      }
    }
  }
}

// Columns [first, first + columns) of a tile, whole slabs, summed over its rows.
void expect_mn_major(TileLayout t, int first, int columns) {
  const TileLayout part{t.rows, columns};
  const uint32_t low =
      tile::mn_major_low(part, kBase + uint32_t(first / t.slab_columns() * t.slab_bytes()));
  for (int step = 0; step < t.rows / kDepth; ++step) {
    const uint64_t descriptor = tile::descriptor(part, low, part.mn_major_step(step));
    for (int i = 0; i < columns; ++i) {
      for (int k = 0; k < kDepth; ++k) {
        ASSERT_EQ(read_at(descriptor, false, i, k),
                  kBase + uint32_t(t.element_offset(step * kDepth + k, first + i)));
      }
    }
  }
}

TEST(BackwardProducts, read_the_elements_they_are_about) {
  for (const BackwardRow& compiled : kAllBackwardTiles) {
    const BackwardConfig& c = compiled.kernel;
    for (int w = 0; w < c.key_warpgroups(); ++w) {
      expect_k_major(c.k_tile(), w * kRowsPerWarpgroup, kRowsPerWarpgroup);  // S = K Q^T
      expect_k_major(c.v_tile(), w * kRowsPerWarpgroup, kRowsPerWarpgroup);  // dP = V dO^T
    }
    expect_k_major(c.q_tile(), 0, c.shape.block_m);
    expect_k_major(c.d_o_part(), 0, c.shape.block_m);
    expect_mn_major(c.d_o_part(), 0, c.d_o_part().columns);  // dV += P dO
    expect_mn_major(c.q_tile(), 0, c.shape.head_dim);        // dK += dS Q
    const AccumLayout parts = c.dq_accum();
    for (int w = 0; w < c.key_warpgroups() && c.has_long_sums(); ++w) {  // dK += dS Q
      expect_mn_major(c.ds_tile(), w * kRowsPerWarpgroup, kRowsPerWarpgroup);
    }
    for (int part = 0; part < parts.parts(); ++part) {  // dQ = dS K, or transposed
      expect_k_major(c.ds_tile(), parts.first_row(part), parts.rows());
      expect_mn_major(c.k_tile(), parts.first_column(part), parts.columns());
    }
  }
}

// A pair of CTAs gets dO in parts, with V's columns beside it; and K's columns of the other CTA in
// a half tile, slab by slab as in the whole one.
TEST(BackwardProducts, parts_of_tiles_lie_as_tiles_of_their_own) {
  int pairs = 0;
  for (const BackwardRow& compiled : kBackwardTiles) {
    const BackwardConfig& c = compiled.kernel;
    const auto expect_parts = [](TileLayout whole, int parts) {
      const TileLayout part{whole.rows, whole.columns / parts};
      for (int row = 0; row < whole.rows; ++row) {
        for (int column = 0; column < whole.columns; ++column) {
          ASSERT_EQ(whole.element_offset(row, column),
                    column / part.columns * part.bytes() +
                        part.element_offset(row, column % part.columns));
        }
      }
    };
    expect_parts(c.v_tile(), c.d_o_parts());
    EXPECT_EQ(c.d_o_part().columns * c.d_o_parts(), c.shape.head_dim_v);
    if (!c.pairs()) continue;
    ++pairs;
    expect_parts(c.k_tile(), c.ctas());
    EXPECT_EQ(c.dq_accum().first_column(c.dq_parts()), c.shape.head_dim / c.ctas());
    EXPECT_EQ(c.dq_accum().parts(), c.dq_parts() * c.ctas());
    EXPECT_GE(c.d_o_stages() * c.d_o_part().bytes(), c.dv_tile().bytes());
  }
  EXPECT_EQ(pairs, 1);
}

// Where a thread adds each element (a float of the block), and which row and column that is.
TEST(AccumLayout, rows_come_out_where_their_products_went_in) {
  std::vector<AccumLayout> all;
  for (const BackwardRow& compiled : kAllBackwardTiles) {
    const BackwardConfig& c = compiled.kernel;
    for (const AccumLayout& parts : {c.dq_accum(), c.dk_accum(), c.dv_accum()})
      all.push_back(parts);
  }
  for (const AccumLayout& parts : all) {
    std::set<int> offsets;
    std::set<std::pair<int, int>> elements;
    for (int part = 0; part < parts.parts(); ++part) {
      for (int thread = 0; thread < kWarpgroupSize; ++thread) {
        for (int group = 0; group < parts.groups(); ++group) {
          for (int e = 0; e < AccumLayout::kGroup; ++e) {
            offsets.insert(parts.offset(part, group, thread) + e);
            auto [row, column] = place(thread, group * AccumLayout::kGroup + e);
            EXPECT_EQ(column / AccumLayout::kColumnsPerGroup, group);
            if (parts.transposed()) std::swap(row, column);
            elements.insert({parts.first_row(part) + row, parts.first_column(part) + column});
          }
        }
      }
    }
    EXPECT_EQ(offsets.size(), size_t(parts.block_floats()));
    EXPECT_EQ(*offsets.rbegin(), parts.block_floats() - 1);
    EXPECT_EQ(elements.size(), size_t(parts.block_floats()));
    EXPECT_EQ(*elements.rbegin(), std::pair(parts.block_rows - 1, parts.head_dim - 1));
  }
}

}  // namespace
}  // namespace fa3::hopper
