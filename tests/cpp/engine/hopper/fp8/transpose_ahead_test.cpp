// SPDX-License-Identifier: Apache-2.0
//
// The kernel that transposes V ahead of the forward kernel's tiles, run as it stands on the machine
// that schedules at random: every part of V leaves once, transposed where it lies, for its place in
// V^T, and is counted behind that.
#include "engine/hopper/fp8/transpose_ahead.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <tuple>
#include <vector>

#include "machine.h"

namespace fa3::hopper {
namespace {

using machine::Departure;

struct CallShape {
  int sequences, kv_heads, keys, columns, ctas, first_heads, late_ctas;
};

constexpr CallShape kShapes[] = {
    {.sequences = 2,
     .kv_heads = 3,
     .keys = 500,
     .columns = 128,
     .ctas = 3,
     .first_heads = 2,
     .late_ctas = 1},
    {.sequences = 40,
     .kv_heads = 2,
     .keys = 100,
     .columns = 64,
     .ctas = 2,
     .first_heads = 3,
     .late_ctas = 2},
    {.sequences = 1,
     .kv_heads = 5,
     .keys = 1024,
     .columns = 256,
     .ctas = 4,
     .first_heads = 1,
     .late_ctas = 2},
    {.sequences = 1,
     .kv_heads = 7,
     .keys = 300,
     .columns = 160,
     .ctas = 2,
     .first_heads = 6,
     .late_ctas = 1},
};

class AheadRun {
 public:
  explicit AheadRun(const CallShape& s) : shape_(s), heads_(s.sequences * s.kv_heads) {
    const int padded = (s.keys + kPreparedKeys - 1) / kPreparedKeys * kPreparedKeys;
    scales_.resize(size_t(heads_ * padded / kDescaleRows));
    largest_.resize(size_t(heads_));
    counters_.resize(size_t(heads_));
    params_ = {.v = map_of(&v_, kPreparedKeys, s.columns, s.keys),
               .transposed = map_of(&transposed_, tile::kSquare, padded, s.columns),
               .values = {.v = {.columns = s.columns},
                          .sequences = s.sequences,
                          .kv_heads = s.kv_heads,
                          .padded_keys = padded,
                          .prepared = scales_.data(),
                          .largest_of_heads = largest_.data()},
               .keys = s.keys,
               .order = {.heads = heads_,
                         .parts_of_head = padded / kPreparedKeys,
                         .ctas = s.ctas,
                         .first_heads = s.first_heads,
                         .late_ctas = s.late_ctas},
               .parts_done = counters_.data()};
  }

  // All CTAs, one after the other.
  std::string run(unsigned seed) {
    for (int cta = 0; cta < shape_.ctas; ++cta) {
      machine::Setting setting{.seed = seed, .block = unsigned(cta)};
      for (int i = 0; i < kAheadWarps * int(kAheadStages) * kPartBlocks; ++i) {
        const uint32_t square = machine::kSmemBase + uint32_t(i * tile::kSquareBytes);
        setting.buffers.push_back({"square", square, tile::kSquareBytes, true});
      }
      const machine::Outcome outcome = machine::run_block(
          setting, kAheadWarps, unsigned(shape_.ctas), [this] { transpose_ahead_kernel(params_); });
      if (!outcome.error.empty()) return outcome.error;
      for (const Departure& d : outcome.departures) {
        if (d.to != &transposed_ || d.bytes != tile::kSquareBytes) return "a store elsewhere";
        ++stored_[{d.batch, d.head, d.row, d.column}];
      }
      expect_counted_behind_stores(outcome);
    }
    return "";
  }

  void expect_all_done() const {
    const TransposeOrder& order = params_.order;
    const int warps = warps_of_part(shape_.columns), keys = order.parts_of_head * kPreparedKeys;
    EXPECT_EQ(stored_.size(), size_t(heads_ * warps * keys / tile::kSquare));
    for (const auto& [place, times] : stored_) {
      const auto& [batch, head, row, column] = place;
      EXPECT_EQ(times, 1) << batch << " " << head << " " << row << " " << column;
      EXPECT_LT(row, shape_.columns);
      EXPECT_LT(column, keys);
      EXPECT_EQ(row % tile::kSquare + column % tile::kSquare, 0);
    }
    for (const int count : counters_) EXPECT_EQ(count, order.parts_of_head * warps);
    // Lane 0, which stands for its warp, has a part's first block.
    for (size_t block = 0; block < scales_.size(); block += kPartBlocks) {
      EXPECT_EQ(scales_[block].unboost, std::exp2(-scales_[block].boost));
    }
  }

 private:
  static CUtensorMap map_of(const void* tensor, int box_rows, int columns, int rows) {
    return machine::encoded({.tensor = tensor,
                             .box_rows = box_rows,
                             .row_bytes = tile::kSquare,
                             .columns = columns,
                             .rows = rows});
  }

  // At each count of a head, at least as many of its stores as are counted have arrived.
  void expect_counted_behind_stores(const machine::Outcome& outcome) const {
    std::map<const int*, int> counted;
    for (size_t use = 0; use < outcome.semaphore_uses.size(); ++use) {
      const machine::SemaphoreUse& count = outcome.semaphore_uses[use];
      const int parts = counted[count.counter] += count.value;
      const int head = int(count.counter - counters_.data());
      int stores = 0;
      for (const Departure& d : outcome.departures) {
        stores += d.batch * shape_.kv_heads + d.head == head && d.arrived <= use;
      }
      EXPECT_GE(stores, parts * kPartBlocks);
    }
  }

  const CallShape shape_;
  const int heads_;
  char v_ = 0, transposed_ = 0;  // stand for tensors
  std::vector<KeyScales> scales_;
  std::vector<float> largest_;
  std::vector<int> counters_;
  TransposeAhead params_{};
  std::map<std::tuple<int, int, int, int>, int> stored_;
};

TEST(TransposeAhead, every_part_leaves_once_and_is_counted_behind) {
  for (const CallShape& shape : kShapes) {
    for (unsigned seed = 0; seed < 5; ++seed) {
      AheadRun run(shape);
      ASSERT_EQ(run.run(seed), "");
      run.expect_all_done();
    }
  }
}

}  // namespace
}  // namespace fa3::hopper
