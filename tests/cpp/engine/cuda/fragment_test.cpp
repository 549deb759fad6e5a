// SPDX-License-Identifier: Apache-2.0
// Who holds which element of an accumulator, and that packing makes it the next product's operand.
#include "engine/hopper/config/kernel.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "core/transposed_values.h"

namespace fa3::hopper::tile {
namespace {

constexpr int kColumns = 128;
constexpr int kElements = kColumns / 2;  // a thread

std::pair<int, int> place(int thread, int element) {
  return {fragment_row(thread) + fragment_row_index(element) * kRowDistance,
          fragment_column(element) + fragment_lane_column(thread)};
}

TEST(Fragment, each_element_of_the_accumulator_is_held_once) {
  std::set<std::pair<int, int>> held;
  for (int thread = 0; thread < kWarpgroupSize; ++thread) {
    for (int element = 0; element < kElements; ++element) {
      const auto [row, column] = place(thread, element);
      EXPECT_LT(row, kRowsPerWarpgroup);
      EXPECT_LT(column, kColumns);
      held.insert({row, column});
    }
  }
  EXPECT_EQ(held.size(), size_t(kRowsPerWarpgroup) * kColumns);
}

TEST(Fragment, lanes_of_a_quad_and_only_they_share_rows) {
  for (int thread = 0; thread < kWarpgroupSize; ++thread) {
    for (int other = 0; other < kWarpgroupSize; ++other) {
      EXPECT_EQ(thread / kQuadLanes == other / kQuadLanes,
                fragment_row(thread) == fragment_row(other));
    }
  }
}

// PTX ISA, wgmma with A in registers, 16-bit elements: of the k-step's 16 columns a lane holds, in
// register r, row lane / 4 + 8 * (r % 2) and columns 2 * (lane % 4) + 8 * (r / 2) + {0, 1}.
TEST(Fragment, packed_pairs_are_the_operand_of_the_next_product) {
  for (int thread = 0; thread < kWarpgroupSize; ++thread) {
    const int warp = thread / kWarpSize, lane = thread % kWarpSize;
    for (int step = 0; step < kColumns / 16; ++step) {
      for (int reg = 0; reg < 4; ++reg) {
        for (int half = 0; half < 2; ++half) {
          const int element = 2 * (4 * step + reg) + half;
          const int row = 16 * warp + lane / 4 + 8 * (reg % 2);
          const int column = 16 * step + 2 * (lane % 4) + 8 * (reg / 2) + half;
          ASSERT_EQ(place(thread, element), std::pair(row, column));
        }
      }
    }
  }
}

// Places of 8-bit elements: 32 columns a k-step, register r's byte b is of row lane / 4 + 8 * (r %
// 2) and column 4 * (lane % 4) + 16 * (r / 2) + b.
TEST(Fragment, weights_packed_to_e4m3_meet_the_keys_in_the_order_of_the_transposed_values) {
  for (int thread = 0; thread < kWarpgroupSize; ++thread) {
    const int warp = thread / kWarpSize, lane = thread % kWarpSize;
    for (int step = 0; step < kColumns / 32; ++step) {
      for (int reg = 0; reg < 4; ++reg) {
        for (int byte = 0; byte < 4; ++byte) {
          const int row = 16 * warp + lane / 4 + 8 * (reg % 2);
          const int column = 32 * step + 4 * (lane % 4) + 16 * (reg / 2) + byte;
          ASSERT_EQ(place(thread, e4m3_element(4 * step + reg, byte)),
                    std::pair(row, e4m3_key(column)));
        }
      }
    }
  }
}

TEST(Fragment, the_order_of_transposed_values_is_that_of_packed_weights) {
  for (int key = 0; key < 64; ++key) EXPECT_EQ(e4m3_key(int(transposed_place(key))), key);
}

}  // namespace
}  // namespace fa3::hopper::tile
