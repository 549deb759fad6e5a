// SPDX-License-Identifier: Apache-2.0
//
// A warp's sums along diagonals, lane by lane: each number is added once, to the element of its
// distance.
#include "engine/cuda/softmax/distance_sums.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "many_orders.h"

namespace fa3::cuda {
namespace {

using namespace fa3::machine;

constexpr int kKeys = 16, kMostQueries = 32;

// Whole numbers, so that sums are exact in any order.
float number(int key, int query) {
  return float((key * 37 + query * 101) % 64 - 31);
}

struct Table {
  int extent;
  int first;  // the index of key 0 and query 0
  int step;
};

int place_of(const Table& table, int key, int query) {
  const int index = table.first + table.step * (key - query);
  return std::clamp(index < 0 ? index + table.extent : index, 0, table.extent - 1);
}

void add_up(const Table& table, int queries, float* sums) {
  DistanceSums distances;
  const int lane = int(thread_in_block() % kWarpSize);
  for (int element = 0; element < queries * kKeys / kWarpSize; ++element) {
    const int key = fragment_row(lane) + fragment_row_index(element) * kRowDistance;
    const int query = fragment_lane_column(lane) + fragment_column(element);
    distances.take(element, number(key, query), sums, table.first + table.step * (key - query),
                   table.step, table.extent);
  }
  distances.finish();
}

TEST(DistanceSums, have_each_number_once) {
  for (const Table& table : {Table{100, 40, 1}, Table{100, 40, -1}, Table{20, 5, 1},
                             Table{20, -3, -1}, Table{1, 0, 1}, Table{7, 900, 1}}) {
    for (const int queries : {8, 16, kMostQueries}) {
      std::vector<float> expected(size_t(table.extent), 0.0f);
      for (int key = 0; key < kKeys; ++key) {
        for (int query = 0; query < queries; ++query) {
          expected[size_t(place_of(table, key, query))] += number(key, query);
        }
      }
      expect_right(1, {}, [&] {
        static std::vector<float> sums;
        if (thread_in_block() == 0) sums.assign(size_t(table.extent), 0.0f);
        __syncwarp();
        add_up(table, queries, sums.data());
        __syncwarp();
        if (thread_in_block() == 0) {
          EXPECT_EQ(sums, expected) << table.first << " " << queries;
        }
      });
    }
  }
}

TEST(DistanceSums, of_no_table_are_added_to_nothing) {
  expect_right(1, {}, [] { add_up({10, 0, 1}, 8, nullptr); });
}

}  // namespace
}  // namespace fa3::cuda
