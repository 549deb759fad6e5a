// SPDX-License-Identifier: Apache-2.0
//
// Which rows and columns the lists of a block mask have for sequences of their own lengths, by the
// lists of tiles that the device makes: each block once, and within the lists whatever the lengths
// are.
#include "engine/cuda/lists/map_place.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <vector>

#include "core/ceil_div.h"
#include "engine/hopper/scheduler/sequence_tiles.h"
#include "engine/hopper/scheduler/varlen_metadata.h"

namespace fa3::hopper {
namespace {

constexpr int kTotal = 1500, kHeads = 2;

// A list of tiles as the device makes it, but in the order of the sequences.
struct TileList {
  std::vector<SequenceTiles> entries;
  int count = 0;

  TileList(const Lengths& rows, const Lengths& others, int batch, int block_rows)
      : entries(size_t(ceil_div(kTotal, block_rows) + batch + 1)) {
    const VarlenMetadata list{.lengths_q = rows,
                              .lengths_k = others,
                              .batch = batch,
                              .block_m = block_rows,
                              .num_packs = kHeads,
                              .capacity = int(entries.size()),
                              .entries = entries.data()};
    int all = 0;
    for (int b = 0; b < list.num_sequences(); ++b) all += list.sequence(b).order.num_m_blocks;
    for (int b = 0, first = 0; b < list.num_sequences(); ++b) {
      list.write(list.sequence(b), first, all);
      first += list.sequence(b).order.num_m_blocks;
    }
    count = std::min(all, list.capacity);
  }
};

struct Setting {
  std::vector<int32_t> starts_q, starts_k;
  int block_m;
  Lengths q = lengths(starts_q), k = lengths(starts_k);
  int batch = int(starts_q.size()) - 1;
  TileList query_tiles{q, k, batch, block_m}, key_tiles{k, q, batch, kMaskBlock};
  std::vector<int> first_rows = std::vector<int>(size_t(batch) + 1, 12345);
  BlockListParams params = make_params();

  static Lengths lengths(const std::vector<int32_t>& starts) {
    return {.cu_seqlens = starts.data(), .max = 900, .total = kTotal, .in_one_tensor = true};
  }
  BlockListParams make_params() {
    BlockListParams p{.varlen = true,
                      .rows_of_map = int(query_tiles.entries.size()) + 1,
                      .columns_of_map = int(key_tiles.entries.size()) + 1,
                      .query_blocks = 8,
                      .key_blocks = 8,
                      .first_rows = first_rows.data(),
                      .row_tiles = {query_tiles.entries.data(), &query_tiles.count},
                      .column_tiles = {key_tiles.entries.data(), &key_tiles.count}};
    p.mask.heads = kHeads;
    for (int64_t row = 0; row < p.rows(); ++row) {  // as the kernel of rows does
      const MapRow at = row_at(p, row);
      if (at.exists() && at.head == 0 && at.query_block == 0) p.first_rows[at.sequence] = int(row);
    }
    return p;
  }
};

using Block = std::tuple<int, int, int>;  // sequence, head, number

TEST(MapPlace, each_block_of_queries_has_a_row_and_each_of_keys_a_column_with_those) {
  for (int block_m : {64, 128}) {
    Setting s{{0, 0, 300, 301, 557, 1400}, {0, 40, 540, 540, 668, 1400}, block_m};
    std::set<Block> rows;
    for (int64_t row = 0; row < s.params.rows(); ++row) {
      const MapRow at = row_at(s.params, row);
      if (at.exists()) {
        EXPECT_TRUE(rows.insert({at.sequence, at.head, at.query_block}).second);
      }
    }
    std::set<Block> columns;
    for (int64_t column = 0; column < s.params.columns(); ++column) {
      const MapColumn at = column_at(s.params, column);
      if (at.num_rows == 0) continue;
      EXPECT_TRUE(columns.insert({at.first.sequence, at.first.head, at.key_block}).second);
      for (int query = 0; query < at.num_rows; ++query) {
        const MapRow row = row_at(s.params, at.first_row + query), told = at.row(query);
        EXPECT_EQ(
            std::tie(row.sequence, row.head, row.query_block, row.seqlen_q, row.seqlen_k),
            std::tie(told.sequence, told.head, told.query_block, told.seqlen_q, told.seqlen_k));
      }
    }
    std::set<Block> expected_rows, expected_columns;
    for (int b = 0; b < s.batch; ++b) {
      const int queries = s.starts_q[size_t(b) + 1] - s.starts_q[size_t(b)];
      const int keys = s.starts_k[size_t(b) + 1] - s.starts_k[size_t(b)];
      for (int head = 0; head < kHeads; ++head) {
        for (int i = 0; i * kMaskBlock < queries && keys > 0; ++i) {
          expected_rows.insert({b, head, i});
        }
        for (int i = 0; i * kMaskBlock < keys && queries > 0; ++i) {
          expected_columns.insert({b, head, i});
        }
      }
    }
    EXPECT_EQ(rows, expected_rows);
    EXPECT_EQ(columns, expected_columns);
  }
}

TEST(MapPlace, lies_within_the_lists_whatever_the_lengths_are) {
  const std::vector<int32_t> wrong[] = {{0, 1500, 0, 1500, 0, 1500}, {0, 2000, -5, 30, 40, 50},
                                        {7, 1 << 30, 3, 2, 1, -9},   {0, 1400, 10, 1400, 20, 1400},
                                        {0, 0, 0, 0, 0, 0},          {1500, 0, 1500, 0, 1500, 0}};
  for (const auto& starts_q : wrong) {
    for (const auto& starts_k : wrong) {
      for (int block_m : {64, 128}) {
        Setting s{starts_q, starts_k, block_m};
        const BlockListParams& p = s.params;
        for (int64_t row = 0; row < p.rows(); ++row) {
          const MapRow at = row_at(p, row);
          if (!at.exists()) continue;
          EXPECT_TRUE(at.sequence < s.batch && at.query_block < p.query_blocks);
          EXPECT_LE(at.cuts(p.rule).blocks.end, p.key_blocks);
        }
        for (int64_t column = 0; column < p.columns(); ++column) {
          const MapColumn at = column_at(p, column);
          if (at.num_rows == 0) continue;
          EXPECT_LE(at.num_rows, p.query_blocks);
          EXPECT_LT(at.key_block, p.key_blocks);
          EXPECT_LE(at.first_row + at.num_rows, p.rows());
          EXPECT_EQ(row_at(p, at.first_row).sequence, at.first.sequence);
        }
        for (const UnrankedLists& lists :
             {UnrankedLists{nullptr, p.rows(), p.rows_of_map, p.row_tiles},
              UnrankedLists{nullptr, p.columns(), p.columns_of_map, p.column_tiles}}) {
          std::vector<int> group(size_t(lists.of_map), -1);
          for (int number = 0; number < lists.of_map; ++number) {
            const RankedTogether with = ranked_with(lists, number);
            ASSERT_LE(with.first + with.count, lists.of_map);
            ASSERT_TRUE(with.count == 0 ||
                        (with.first <= number && number < with.first + with.count));
            for (int i = with.first; i < with.first + with.count; ++i) {
              ASSERT_TRUE(group[size_t(i)] == -1 || group[size_t(i)] == with.first);
              group[size_t(i)] = with.first;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fa3::hopper
