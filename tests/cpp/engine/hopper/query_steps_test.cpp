// SPDX-License-Identifier: Apache-2.0
// Which query blocks a key block goes through, against the mask rule pair by pair; and the order of key
// blocks.
#include "engine/hopper/backward/query_steps.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <vector>

namespace fa3::hopper {
namespace {

constexpr int kM = 64;

template <typename F>
void for_each_key_block(int num_keys, F check) {
  for (const bool causal : {false, true}) {
    for (const int sq : {0, 1, 63, 64, 65, 130, 200, 333}) {
      for (const int sk : {1, 63, 64, 65, 128, 129, 200, 400}) {
        const BackwardExtents e{sq, sk, causal};
        for (int key = 0; key < sk; key += num_keys) check(e, key);
      }
    }
  }
}

TEST(QuerySteps, hold_every_query_that_sees_a_key_of_the_block_and_no_idle_block) {
  for_each_key_block(128, [](const BackwardExtents& e, int first_key) {
    const QuerySteps steps = query_steps(e, first_key, 128, kM);
    for (int block = 0; block * kM < e.seqlen_q; ++block) {
      bool sees = false;
      for (int q = block * kM; q < std::min((block + 1) * kM, e.seqlen_q); ++q) {
        for (int k = first_key; k < std::min(first_key + 128, e.seqlen_k); ++k) {
          sees |= e.mask().visible(q, k, e.seqlen_q, e.seqlen_k);
        }
      }
      EXPECT_EQ(sees, block >= steps.first_block && block < steps.end_block)
          << e.seqlen_q << "x" << e.seqlen_k << " causal " << e.causal << " key " << first_key;
    }
    EXPECT_LE(steps.per_head() * kM, e.seqlen_q + kM - 1);
  });
}

TEST(QuerySteps, a_key_is_seen_from_its_first_query_on) {
  for_each_key_block(1, [](const BackwardExtents& e, int key) {
    for (int q = 0; q < e.seqlen_q; ++q) {
      EXPECT_EQ(e.mask().visible(q, key, e.seqlen_q, e.seqlen_k), q >= first_query(e, key));
    }
  });
  EXPECT_GT(first_query({10, 10, false}, 10), 1 << 30);  // past the end: by none
}

TEST(QuerySteps, from_free_from_on_no_key_of_the_warpgroup_is_hidden) {
  for_each_key_block(64, [](const BackwardExtents& e, int first_key) {
    for (int q = 0; q < e.seqlen_q; ++q) {
      bool all = true;
      for (int k = first_key; k < first_key + 64; ++k) {
        all &= k < e.seqlen_k && e.mask().visible(q, k, e.seqlen_q, e.seqlen_k);
      }
      EXPECT_EQ(all, q >= free_from(e, first_key, 64));
    }
  });
}

// Those that wait are launched after those they wait for: else none of them might ever come to run.
TEST(QuerySteps, turns_are_taken_once_each_and_in_the_order_of_launches) {
  for (const bool causal : {false, true}) {
    for (const int sq : {1, 64, 130, 500}) {
      for (const int sk : {1, 128, 200, 600}) {
        const BackwardExtents e{sq, sk, causal};
        const KeyBlockOrder order{(sk + 127) / 128, 1, 1, 1, causal};
        std::vector<int> next((sq + kM - 1) / kM, 0);
        for (int tile = 0; tile < order.num_tiles(); ++tile) {
          const int n = order.at(tile).n_block;
          const QuerySteps steps = query_steps(e, n * 128, 128, kM);
          for (int m = steps.first_block; m < steps.end_block; ++m) {
            EXPECT_EQ(turn_of(e, n, 128, m, kM), next[size_t(m)]++)
                << sq << "x" << sk << " causal " << causal << " n " << n << " m " << m;
          }
        }
      }
    }
  }
}

TEST(KeyBlockOrder, every_tile_comes_once_and_the_longest_of_a_section_first) {
  for (const int section : {1, 2, 3, 5, 12}) {
    const KeyBlockOrder order{7, 4, 3, section, false};
    std::set<std::tuple<int, int, int>> seen;
    int last_n = 0, last_section = 0;
    for (int tile = 0; tile < order.num_tiles(); ++tile) {
      const KeyBlockIndex at = order.at(tile);
      EXPECT_TRUE(at.n_block < 7 && at.kv_head < 4 && at.batch < 3);
      seen.insert({at.n_block, at.kv_head, at.batch});
      const int section_of_tile = (at.batch * 4 + at.kv_head) / section;
      EXPECT_TRUE(section_of_tile > last_section || at.n_block >= last_n);
      EXPECT_GE(section_of_tile, last_section);
      last_n = at.n_block;
      last_section = section_of_tile;
    }
    EXPECT_EQ(seen.size(), size_t(order.num_tiles()));
  }
}

}  // namespace
}  // namespace fa3::hopper
