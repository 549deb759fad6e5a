// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/fp8/quantize_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

namespace fa3::hopper {
namespace {

struct OrderShape {
  QuantizeOrder::Tensor tensors[QuantizeOrder::kMostTensors];
  int group_blocks;
};

constexpr OrderShape kShapes[] = {
    // q, k and v of 16 sequences of 1k tokens, and of one of 16k, by 16 heads of 128.
    {{{16, 16, 16, false}, {16, 16, 16, true}, {16, 16, 16, true}}, 256},
    {{{1, 16, 256, false}, {1, 16, 256, true}, {1, 16, 256, true}}, 256},
    // Few key heads; all of a call in one group; groups that end with fewer sequences or heads.
    {{{4, 32, 64, false}, {4, 4, 64, true}, {4, 4, 64, true}}, 256},
    {{{1, 2, 3, false}, {1, 2, 3, true}, {1, 2, 3, true}}, 256},
    {{{7, 5, 3, false}, {7, 5, 3, true}, {7, 5, 3, true}}, 40},
    {{{3, 7, 11, false}, {3, 7, 11, true}, {3, 7, 11, true}}, 50},
    {{{2, 3, 40, false}, {2, 3, 40, true}, {2, 3, 40, true}}, 16},
    // No mean, a mean for all, unlike shapes, fewer tensors, none.
    {{{3, 4, 5, false}, {3, 4, 6, false}, {3, 4, 5, false}}, 16},
    {{{3, 4, 5, true}, {3, 4, 6, true}, {2, 9, 5, true}}, 16},
    {{{1, 64, 1, true}, {20, 1, 30, true}, {5, 5, 5, false}}, 32},
    {{{9, 2, 4, true}, {}, {}}, 32},
    {{{}, {2, 2, 2, false}, {2, 2, 2, true}}, 1},
    {{{}, {}, {}}, 8},
};

using Place = std::tuple<int, int, int, int>;  // tensor, sequence, head, block

Place place_of(const QuantizeTask& task) {
  return {task.tensor, task.sequence, task.head, task.block};
}

Place head_of(const QuantizeTask& task) {
  return {task.tensor, task.sequence, task.head, 0};
}

struct Numbers {
  std::map<Place, int> sums, means, tiles;
  std::map<Place, int> last_sums, first_tiles;  // of heads
  int worth = 0;                                // tasks that are something
};

Numbers numbers_of(const QuantizeOrder& order) {
  Numbers found;
  for (int i = 0; i < int(order.tasks()); ++i) {
    const QuantizeTask task = order.task(i);
    if (task.kind == QuantizeTask::kNothing) continue;
    ++found.worth;
    auto& kind = task.kind == QuantizeTask::kSum    ? found.sums
                 : task.kind == QuantizeTask::kMean ? found.means
                                                    : found.tiles;
    EXPECT_TRUE(kind.emplace(place_of(task), i).second) << "twice";
    if (task.kind == QuantizeTask::kSum) found.last_sums[head_of(task)] = i;
    if (task.kind == QuantizeTask::kTile) found.first_tiles.emplace(head_of(task), i);
  }
  return found;
}

TEST(QuantizeOrder, has_every_block_once_behind_its_mean_and_the_mean_behind_its_sums) {
  for (const OrderShape& s : kShapes) {
    const QuantizeOrder order(s.tensors, s.group_blocks);
    const Numbers found = numbers_of(order);
    size_t tiles = 0, sums = 0, means = 0;
    for (const QuantizeOrder::Tensor& t : s.tensors) {
      const auto heads = size_t(t.batch * t.heads), blocks = heads * size_t(t.blocks);
      tiles += blocks;
      if (t.centred) sums += blocks, means += heads;
    }
    EXPECT_EQ(found.tiles.size(), tiles);
    EXPECT_EQ(found.sums.size(), sums);
    EXPECT_EQ(found.means.size(), means);
    for (const auto& places : {found.sums, found.means, found.tiles}) {
      for (const auto& [place, number] : places) {
        const auto& [tensor, sequence, head, block] = place;
        const QuantizeOrder::Tensor& t = s.tensors[tensor];
        ASSERT_TRUE(sequence < t.batch && head < t.heads && block < t.blocks);
        ASSERT_TRUE(sequence >= 0 && head >= 0 && block >= 0);
      }
    }
    for (const auto& [head, mean] : found.means) {
      EXPECT_LT(found.last_sums.at(head), mean);
      EXPECT_LT(mean, found.first_tiles.at(head));
    }
  }
}

// A mean has time to be found, and a block is in the L2 cache when it is read again: between come
// no more sums than kLead groups and a half have.
TEST(QuantizeOrder, reads_again_neither_too_early_nor_too_late) {
  for (const OrderShape& s : {kShapes[0], kShapes[1], kShapes[2]}) {
    const QuantizeOrder order(s.tensors, s.group_blocks);
    const Numbers found = numbers_of(order);
    std::vector<int> sums;
    for (const auto& [place, number] : found.sums) sums.push_back(number);
    std::ranges::sort(sums);
    const auto sums_before = [&](int number) {
      return std::ranges::lower_bound(sums, number) - sums.begin();
    };
    for (const auto& [place, number] : found.sums) {
      const auto between = sums_before(found.tiles.at(place)) - sums_before(number);
      EXPECT_LE(between, (2 * QuantizeOrder::kLead + 1) * s.group_blocks / 2);
    }
    // In tasks: the first periods and the last ones have fewer.
    const auto period = order.tasks() / (int(found.sums.size()) / s.group_blocks + 3);
    for (const auto& [head, mean] : found.means) {
      EXPECT_GE(found.first_tiles.at(head) - mean, 5 * period / 4);
      EXPECT_GE(mean - found.last_sums.at(head), period / 3);
    }
  }
}

TEST(QuantizeOrder, wastes_few_tasks_on_usual_shapes) {
  for (const OrderShape& s : {kShapes[0], kShapes[1], kShapes[2]}) {
    const QuantizeOrder order(s.tensors, s.group_blocks);
    const int worth = numbers_of(order).worth;
    EXPECT_LT(order.tasks(), worth * 13 / 10) << worth;
  }
}

// Such calls are quantized one tensor at a time.
TEST(QuantizeOrder, refuses_shapes_that_would_waste_most) {
  const QuantizeOrder::Tensor tensors[] = {
      {1, 1, 1 << 26, true}, {1 << 10, 1 << 10, 1, true}, {1, 1, 1, false}};
  EXPECT_GE(QuantizeOrder(tensors, 1).tasks(), QuantizeOrder::kTooMany);
}

}  // namespace
}  // namespace fa3::hopper
