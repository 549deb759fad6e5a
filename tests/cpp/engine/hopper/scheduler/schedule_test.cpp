// SPDX-License-Identifier: Apache-2.0
// The order of tiles and the key blocks of each, against brute force.

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <queue>
#include <set>
#include <tuple>
#include <vector>

#include "engine/cuda/mask/key_window.h"
#include "engine/cuda/mask/row_blocks.h"
#include "engine/cuda/tile/tile_order.h"
#include "engine/hopper/decode/warp_keys.h"
#include "engine/hopper/forward_params.h"
#include "engine/hopper/scheduler/sequence_tiles.h"
#include "engine/hopper/scheduler/varlen_metadata.h"
#include "engine/hopper/score_operands.h"

namespace fa3::hopper {
namespace {

TEST(TileOrder, every_tile_comes_once) {
  for (int m_blocks : {1, 2, 7, 128}) {
    for (int heads : {1, 3, 16}) {
      for (int batches : {1, 5}) {
        for (int tail : {0, 1, 4, heads * batches}) {
          const TileOrder order{m_blocks, heads, batches, std::min(tail, heads * batches)};
          std::set<std::tuple<int, int, int>> seen;
          for (int ticket = 0; ticket < order.num_tiles(); ++ticket) {
            const TileIndex tile = order.tile(ticket);
            EXPECT_TRUE(tile.m_block >= 0 && tile.m_block < m_blocks);
            EXPECT_TRUE(tile.pack >= 0 && tile.pack < heads);
            EXPECT_TRUE(tile.batch >= 0 && tile.batch < batches);
            seen.insert({tile.m_block, tile.pack, tile.batch});
          }
          EXPECT_EQ(seen.size(), size_t(order.num_tiles()));
        }
      }
    }
  }
}

// In one group a query block's tiles come one behind the other, and the longest ones first.
TEST(TilesTogether, come_once_and_one_behind_the_other) {
  for (const auto& [packs, batches] : {std::pair{1, 1}, {2, 1}, {1, 3}, {2, 2}, {2, 3}}) {
    for (int m_blocks : {1, 2, 7}) {
      for (int tail : {0, 1, 4}) {
        const TilesTogether together{packs, batches};
        const TileOrder groups{m_blocks * together.count(), 4 / packs, 6 / batches,
                               std::min(tail, 24 / together.count())};
        ASSERT_EQ(groups.num_tiles(), m_blocks * 4 * 6);
        std::set<std::tuple<int, int, int>> seen;
        std::map<std::pair<int, int>, int> last_m_block;
        TileIndex before{};
        for (int ticket = 0; ticket < groups.num_tiles(); ++ticket) {
          const TileIndex tile = together.tile(groups.tile(ticket));
          EXPECT_TRUE(tile.m_block >= 0 && tile.m_block < m_blocks);
          EXPECT_TRUE(tile.pack >= 0 && tile.pack < 4);
          EXPECT_TRUE(tile.batch >= 0 && tile.batch < 6);
          EXPECT_TRUE(seen.insert({tile.m_block, tile.pack, tile.batch}).second);
          const auto [last, first] = last_m_block.insert({{tile.pack, tile.batch}, m_blocks});
          EXPECT_EQ(tile.m_block, last->second - 1);
          last->second = tile.m_block;
          if (tail == 0 && ticket % together.count() != 0) {
            EXPECT_EQ(tile.m_block, before.m_block);
            EXPECT_EQ(tile.pack / packs, before.pack / packs);
            EXPECT_EQ(tile.batch / batches, before.batch / batches);
          }
          before = tile;
        }
        EXPECT_EQ(seen.size(), size_t(groups.num_tiles()));
      }
    }
  }
}

using Mask = MaskRuleOf<int>;
constexpr Mask kFull, kCausal{.right = 0};

// Blocks that some of these rows visit.
int num_blocks(const Mask& mask, int first_row, int rows, int block_n, int queries, int keys) {
  const int end = std::min(first_row + rows, queries);
  return visited_blocks(block_range(mask, first_row, end, queries, keys), block_n).end;
}

// Tiles drawn by 132 SMs as they fall free: the last one to finish over the mean.
double drawn_imbalance(const TileOrder& order, int block_m, int block_n, int seqlen) {
  std::priority_queue<double, std::vector<double>, std::greater<>> free_at;
  for (int i = 0; i < 132; ++i) free_at.push(0);
  double total = 0, last = 0;
  for (int ticket = 0; ticket < order.num_tiles(); ++ticket) {
    const int first_row = order.tile(ticket).m_block * block_m;
    const double cost = num_blocks(kCausal, first_row, block_m, block_n, seqlen, seqlen);
    const double end = free_at.top() + cost;
    free_at.pop();
    free_at.push(end);
    total += cost;
    last = std::max(last, end);
  }
  return last / (total / 132);
}

// The waves that launch_forward.cpp gives these lengths: from its fewest to its most.
TEST(TileOrder, a_tail_of_many_heads_evens_out_causal_work) {
  struct Production {
    int seqlen, waves;
  };
  for (const auto [seqlen, waves] :
       {Production{2048, 2}, {4096, 2}, {8192, 4}, {12288, 6}, {16384, 8}, {65536, 8}}) {
    const int m_blocks = seqlen / 128, batches = std::max(16384 / seqlen, 1), heads = 16;
    const int tail = std::min(heads * batches, (waves * 132 + m_blocks - 1) / m_blocks);
    const double with = drawn_imbalance({m_blocks, heads, batches, tail}, 128, 128, seqlen);
    const double without = drawn_imbalance({m_blocks, heads, batches, 0}, 128, 128, seqlen);
    EXPECT_LT(with, 1.04) << seqlen;
    EXPECT_LT(with, without) << seqlen;
  }
}

struct Extents {
  int queries, keys;
};

// The second of the three warpgroups of a tile: what it visits, masks and guards. Its keys are
// counted from the first that the tile's first query sees.
template <class Edge>
void expect_right_blocks(const Mask& mask, int queries, int keys, int block_keys) {
  constexpr int kRows = 64;
  for (int first = 0; first < queries; first += kRows) {
    const int end = std::min(first + kRows, queries);
    const int first_key = mask.keys_of(std::max(first - kRows, 0), queries, keys).begin;
    const RowBlocks<Edge> blocks =
        row_blocks(block_range(mask, first, end, queries, keys).from(first_key),
                   Edge::of(mask, first, end, queries, keys).from(first_key), block_keys);
    std::vector<bool> has_seen(kRows, false);
    ASSERT_GE(blocks.count, 1);
    ASSERT_LE(blocks.count, std::max(1, (keys - first_key + block_keys - 1) / block_keys))
        << "a block behind the last key is visited";
    ASSERT_LE(blocks.online_from, blocks.masked_from);
    ASSERT_LE(blocks.online_from, blocks.count - 1);  // the first visited is ordinary
    for (int key = 0; key < first_key; ++key) {
      for (int row = first; row < end; ++row) ASSERT_FALSE(mask.visible(row, key, queries, keys));
    }
    for (int block = (keys + block_keys - 1) / block_keys; block >= 0; --block) {
      const bool masked = block >= blocks.masked_from || blocks.edge.hides_left(block * block_keys);
      const bool guarded =
          block < blocks.online_from && !blocks.edge.hides_left(block * block_keys);
      std::vector<bool> sees(kRows, false);
      for (int row = first; row < end; ++row) {
        for (int key = block * block_keys; key < (block + 1) * block_keys; ++key) {
          const int own = first_key + key;
          const bool visible = own < keys && mask.visible(row, own, queries, keys);
          bool kept = key < blocks.edge.end_of(row - first);
          if constexpr (Edge::kHidesLeft) kept = kept && key >= blocks.edge.begin_of(row - first);
          ASSERT_EQ(visible, kept);
          if (visible) {
            ASSERT_LT(block, blocks.count) << "a visible key is not visited";
            sees[row - first] = true;
          }
          if (!visible && block < blocks.count) {
            ASSERT_TRUE(masked) << "a hidden key is not masked";
          }
        }
        // A guarded step needs a reference: every row saw a key in a block before.
        if (guarded) {
          ASSERT_TRUE(has_seen[row - first]);
        }
      }
      for (int row = 0; row < kRows; ++row) has_seen[row] = has_seen[row] || sees[row];
    }
  }
}

TEST(RowBlocks, hold_every_visible_key_and_mask_where_one_is_hidden) {
  for (const auto [queries, keys] : {Extents{1, 1},
                                     {64, 48},
                                     {200, 200},
                                     {130, 300},
                                     {300, 130},
                                     {100, 0},
                                     {65, 2},
                                     {512, 96},
                                     {96, 512}}) {
    for (const Mask& mask :
         {kFull, kCausal, Mask{.right = 5}, Mask{.right = -1}, Mask{.right = -80}}) {
      for (int block_keys : {48, 42}) {
        expect_right_blocks<RightEdge>(mask, queries, keys, block_keys);
        expect_right_blocks<KeyWindow>(mask, queries, keys, block_keys);
      }
    }
    for (const Mask& mask :
         {Mask{.left = 0}, Mask{.left = 7, .right = 0}, Mask{.left = 100},
          Mask{.left = 60, .right = 30}, Mask{.left = 0, .right = 0}, Mask{.chunk = 1},
          Mask{.chunk = 50}, Mask{.right = 0, .chunk = 64},
          Mask{.left = 30, .right = 5, .chunk = 100}, Mask{.left = -1}, Mask{.left = -150},
          Mask{.left = -20, .right = 90}, Mask{.left = 130, .right = -70},
          Mask{.left = -3, .chunk = 50}, Mask{.left = 90, .right = -30, .chunk = 64}}) {
      for (int block_keys : {48, 42}) {
        expect_right_blocks<KeyWindow>(mask, queries, keys, block_keys);
      }
    }
  }
}

// Whatever the arrays of lengths hold.
TEST(VarlenMetadata, has_every_row_of_every_sequence_once_and_stays_within_the_tensors) {
  constexpr int kTotal = 1000, kBatch = 5, kBlock = 64;
  const std::vector<int32_t> lists[] = {{0, 1, 1, 500, 980, 1000},    {0, 0, 0, 0, 0, 0},
                                        {0, 100, 200, 300, 400, 500}, {0, 2000, -5, 30, 40, 50},
                                        {7, 1 << 30, 3, 2, 1, -9},    {0, 1000, 0, 1000, 0, 1000}};
  for (const std::vector<int32_t>& starts : lists) {
    std::vector<SequenceTiles> entries(kTotal / kBlock + 1 + kBatch + 1);
    int num_entries = 0, counter = 5;
    const fa3::Lengths lengths{.cu_seqlens = starts.data(), .max = kTotal, .total = kTotal};
    const int32_t used[kBatch] = {1, -7, 1 << 30, 10, 0};
    const fa3::Lengths keys{.seqused = used, .max = 90, .total = 90 * kBatch};
    const VarlenMetadata list{.lengths_q = lengths,
                              .lengths_k = keys,
                              .batch = kBatch,
                              .block_m = kBlock,
                              .num_packs = 3,
                              .tail_tiles = 40,
                              .capacity = int(entries.size()),
                              .entries = entries.data(),
                              .num_entries = &num_entries,
                              .tile_counter = &counter};
    int all = 0;
    std::vector<int> owners(kTotal, 0);
    for (int b = 0; b < list.num_sequences(); ++b) {
      const SequenceTiles s = list.sequence(b);
      ASSERT_TRUE(s.queries.begin >= 0 && s.queries.count >= 0 && s.keys.begin >= 0);
      ASSERT_LE(s.queries.begin + s.queries.count, kTotal);
      ASSERT_LE(s.queries.used, s.queries.count);
      ASSERT_TRUE(s.keys.count >= 0 && s.keys.count <= 90);
      for (int i = 0; i < s.queries.count; ++i) ++owners[size_t(s.queries.begin + i)];
      all += s.order.num_m_blocks;
    }
    const bool valid = std::is_sorted(starts.begin(), starts.end()) && starts.front() == 0;
    EXPECT_TRUE(!valid || std::set<int>(owners.begin(), owners.end()) == std::set<int>{1});
    if (!valid) continue;
    ASSERT_LE(all, list.capacity);
    for (int b = 0, first = 0; b < list.num_sequences(); ++b) {
      list.write(list.sequence(b), first, all);
      first += list.sequence(b).order.num_m_blocks;
    }
    // The tiles of all tickets: each row of tiles of each sequence once for each pack.
    std::set<std::tuple<int, int, int>> seen;
    for (int ticket = 0; ticket < all * list.num_packs; ++ticket) {
      const SequenceTiles& s = entries[size_t(ticket / list.num_packs)];
      const TileIndex tile = s.order.tile(ticket - s.first_entry * list.num_packs);
      ASSERT_TRUE(tile.m_block >= 0 && tile.m_block < s.order.num_m_blocks);
      ASSERT_TRUE(tile.pack >= 0 && tile.pack < list.num_packs);
      seen.insert({s.first_entry, tile.m_block, tile.pack});
    }
    EXPECT_EQ(int(seen.size()), all * list.num_packs);
  }
}

// Stages of warps that stream keys.
template <int SlotKeys>
void expect_each_key_in_one_slot() {
  for (int warps_log2 : {0, 3, 4, 7, 10}) {
    for (int keys : {0, 1, SlotKeys, SlotKeys + 1, 1000, 8192, 8193, 100000}) {
      std::vector<int> seen(size_t(keys), 0);
      for (int warp = 0; warp < 1 << warps_log2; ++warp) {
        const WarpKeys<SlotKeys> turns(warp, warps_log2);
        for (int stage = 0; stage < turns.stages_of(keys); ++stage) {
          const int first = turns.first_key + stage * turns.step_keys;
          ASSERT_LT(first, keys);  // no stage is empty
          for (int key = first; key < std::min(first + SlotKeys, keys); ++key) ++seen[size_t(key)];
        }
      }
      ASSERT_EQ(std::ranges::count(seen, 1), keys) << keys << " keys, 2^" << warps_log2;
    }
  }
}

TEST(WarpKeys, have_each_key_in_one_stage_and_no_stage_without_keys) {
  expect_each_key_in_one_slot<16>();
  expect_each_key_in_one_slot<32>();
  expect_each_key_in_one_slot<64>();
}

TEST(FastDivisor, divides_as_the_machine_does) {
  for (const uint32_t divisor : {1u, 2u, 3u, 7u, 16u, 17u, 640u, 65537u, 1u << 30, 0x7fffffffu}) {
    const Divisor by = Divisor::of(divisor);
    for (const uint32_t n : {0u, 1u, 6u, 7u, 8u, 12345u, 0x7ffffffeu, 0x7fffffffu}) {
      EXPECT_EQ(by.quotient(n), n / divisor) << n << " / " << divisor;
      const uint32_t multiple = n / divisor * divisor;
      EXPECT_EQ(by.quotient(multiple), multiple / divisor);
      if (multiple > 0) {
        EXPECT_EQ(by.quotient(multiple - 1), (multiple - 1) / divisor);
      }
    }
  }
}

// The blocks a tile loads are those of its last warpgroup with rows: nobody waits for one more.
TEST(RowBlocks, of_a_tile_are_the_most_of_its_warpgroups) {
  for (const auto [queries, keys] : {Extents{1000, 1000}, {129, 700}, {700, 129}}) {
    for (int first = 0; first < queries; first += 192) {
      int most = 0;
      for (int row = first; row < std::min(first + 192, queries); row += 64) {
        most = std::max(most, num_blocks(kCausal, row, 64, 80, queries, keys));
      }
      EXPECT_EQ(num_blocks(kCausal, first, 192, 80, queries, keys), most);
    }
  }
}

}  // namespace
}  // namespace fa3::hopper
