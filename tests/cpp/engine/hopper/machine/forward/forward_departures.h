// SPDX-License-Identifier: Apache-2.0
//
// What leaves a forward's CTA: rows of O and of the LSE, of tiles and of splits, by stores or
// through shared memory.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>
#include <vector>

#include "engine/hopper/config/e4m3_tuning.h"
#include "forward/forward_work.h"

namespace fa3::hopper {

// Tiles whose first key block has an infinite score, which the guarded softmax cannot hold: its
// scores are computed again.
inline bool is_extreme(unsigned seed, int m_block, int head, int batch) {
  const unsigned mixed = (seed + 1) * 2654435761u ^ unsigned(m_block * 31 + head * 7 + batch * 3);
  return mixed % 5 == 0;
}

class ForwardDepartures {
 public:
  using Work = ForwardWork;

  explicit ForwardDepartures(const LaunchedForward& launch) : launch_(launch) {}

  // Lane 0 writes O and the LSE of its first row and of the row 8 below.
  void expect_rows_written(const std::vector<Work>& tiles, const machine::Outcome& outcome) const {
    std::set<const void*> expected;
    for (const Work& work : tiles) {
      const int first = work.m_block * config_.shape.block_m;
      const int end = std::min(work.queries.count, first + config_.shape.block_m);
      for (int row = first; row < end; ++row) {
        if (row % kRowsPerWarp % kRowDistance != 0) continue;
        if (work.is_split() && !work.opens) {
          add_partial_row(work, row, &expected);
        } else {
          add_row(work, row, &expected);
        }
        if (testing::Test::HasFatalFailure()) return;
      }
    }
    ASSERT_EQ(std::set<const void*>(outcome.stored.begin(), outcome.stored.end()), expected);
    if (stages_rows()) expect_rows_sent(tiles, outcome);
  }

 private:
  bool stages_rows() const { return hopper::stages_rows(config_); }

  void add_partial_row(const Work& work, int row, std::set<const void*>* expected) const {
    constexpr int kPieceColumnsApart = 8;
    const PartialOutput& to = launch_.params.partials;
    const int64_t partial_row = to.row(work.partial, row % config_.shape.block_m);
    ASSERT_FALSE(std::isnan(to.sums[partial_row].sum)) << "row " << row << " of a split";
    for (int column = 0; column < to.columns; column += kPieceColumnsApart) {
      expected->insert(&to.o[partial_row * to.columns + column]);
    }
  }

  void add_row(const Work& work, int row, std::set<const void*>* expected) const {
    constexpr int kColumnsApart = 32;  // of a lane's stores
    const auto& [batch, head, begin, count, used] = work.queries;
    const CallShape& s = launch_.shape;
    const int64_t at = (int64_t{batch} * s.heads + head) * s.q_rows() + begin + row;
    const float lse = launch_.lse[size_t(at)];
    const bool extreme = is_extreme(launch_.trial.seed, work.m_block, head, batch);
    ASSERT_TRUE(extreme || !std::isnan(lse)) << "row " << row << " not written";
    if (work.opens) expect_all_keys_counted(work, row, lse);
    if (stages_rows()) return;
    const int64_t o_row = (int64_t{batch} * s.q_rows() + begin + row) * s.heads + head;
    for (int column = 0; column < config_.shape.head_dim_v; column += kColumnsApart) {
      const int64_t element = o_row * config_.shape.head_dim_v + column;
      expected->insert(&launch_.o[size_t(element) * bytes_of(config_.element)]);
    }
  }

  // Scores are zero, so the log-sum-exp is the logarithm of how many keys all splits have counted;
  // where a mask ends within eight keys, lane 0 stands for others that see one more or less.
  void expect_all_keys_counted(const Work& work, int row, float lse) const {
    constexpr float kTolerance = 8;
    const int seen =
        std::max(0, launch_.shape.mask.keys_of(row, work.queries.used, work.keys.count).end);
    ASSERT_NEAR(std::exp(lse), float(seen), kTolerance) << "row " << row;
  }

  // Where rows leave through shared memory: each warp's once, slab by slab or all together.
  void expect_rows_sent(const std::vector<Work>& tiles, const machine::Outcome& outcome) const {
    using Sent = std::tuple<int, int, int, int, int, int>;
    const tile::TileLayout rows = config_.tiles_in_smem().staged_o;
    const bool together = launch_.params.o_slabs_together;
    std::multiset<Sent> expected, sent;
    for (const Work& work : tiles) {
      const auto& [batch, head, begin, count, used] = work.queries;
      for (int warp = 0; warp < config_.consumer_warps(); ++warp) {
        const int row = work.m_block * config_.shape.block_m + warp * kRowsPerWarp;
        if (row >= count) continue;
        for (int slab = 0; slab < (together ? 1 : rows.slabs()); ++slab) {
          expected.emplace(launch_.first_consumer() + warp, begin + row, slab * rows.slab_columns(),
                           head, batch, together ? rows.bytes() : rows.slab_bytes());
        }
      }
    }
    for (const machine::Departure& d : outcome.departures) {
      ASSERT_EQ(d.to, launch_.o.data());
      sent.emplace(d.warp, d.row, d.column, d.head, d.batch, d.bytes);
    }
    ASSERT_EQ(sent, expected);
  }

  const LaunchedForward& launch_;
  const Kernel& config_ = launch_.config;
};

}  // namespace fa3::hopper
