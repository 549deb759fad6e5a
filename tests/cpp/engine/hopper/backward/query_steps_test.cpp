// SPDX-License-Identifier: Apache-2.0
// Which query blocks a key block goes through, against the mask rule pair by pair; the order of
// additions to dQ; and where the query blocks of packed sequences lie.
#include "engine/cuda/backward/query_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/hopper/scheduler/key_block_order.h"

namespace fa3::hopper {
namespace {

using namespace cuda;

constexpr int kM = 64;
constexpr int kUnbounded = MaskRuleOf<int>::kUnbounded;

// Windows about the diagonal and beside it.
template <typename F>
void for_each_window(F check) {
  for (const int left : {kUnbounded, 0, 50, 129, -1, -70, -400}) {
    for (const int right : {kUnbounded, 0, 1, 70, -1, -50}) {
      if (left == kUnbounded || right == kUnbounded || left + right >= 0) check(left, right);
    }
  }
  check(-90, 100);
  check(160, -140);
}

// check(extents, first_key) for dense extents, then for those of a sequence with windows.
template <typename F>
void for_each_key_block(int num_keys, F check) {
  for (const int sq : {0, 1, 63, 64, 65, 130, 200, 333}) {
    for (const int sk : {1, 63, 64, 65, 128, 129, 200, 400}) {
      for (int key = 0; key < sk; key += num_keys) {
        for (const bool causal : {false, true}) check(BackwardExtents{sq, sk, causal}, key);
        for_each_window([&](int left, int right) {
          for (const int chunk : {0, 1, 40, 64, 150}) {
            check(SequenceExtents::of(sq, sk, {left, right, chunk}, key), key);
          }
        });
      }
    }
  }
}

template <class Extents>
std::string describe(const Extents& e) {
  return std::to_string(e.seqlen_q) + "x" + std::to_string(e.seqlen_k) + " window " +
         std::to_string(e.mask().left) + " " + std::to_string(e.mask().right) + " chunk " +
         std::to_string(e.mask().chunk);
}

TEST(QuerySteps, hold_every_query_that_sees_a_key_of_the_block_and_no_idle_block) {
  for_each_key_block(128, [](const auto& e, int first_key) {
    const QuerySteps steps = query_steps(e, first_key, 128, kM);
    for (int block = 0; block * kM < e.seqlen_q; ++block) {
      bool sees = false;
      for (int q = block * kM; q < std::min((block + 1) * kM, e.seqlen_q); ++q) {
        for (int k = first_key; k < std::min(first_key + 128, e.seqlen_k); ++k) {
          sees |= e.mask().visible(q, k, e.seqlen_q, e.seqlen_k);
        }
      }
      // Where chunks cut a band beside the diagonal, none of a block's queries may be left.
      const bool may_be_idle =
          e.mask().chunk != MaskRuleOf<int>::kNoChunks && e.mask().is_beside_diagonal();
      const bool visited = block >= steps.first_block && block < steps.end_block;
      EXPECT_EQ(sees, visited && (sees || !may_be_idle))
          << describe(e) << " key " << first_key << " block " << block;
    }
    EXPECT_LE(steps.per_head() * kM, e.seqlen_q + kM - 1);
  });
}

TEST(QuerySteps, of_keys_past_the_end_are_none) {
  EXPECT_EQ(query_steps(SequenceExtents::of(100, 128, {kUnbounded, kUnbounded}, 128), 128, 128, kM)
                .per_head(),
            0);
}

TEST(QuerySteps, a_key_is_seen_from_its_first_query_to_its_end) {
  for_each_key_block(64, [](const auto& e, int first_key) {
    for (int key = first_key; key < std::min(first_key + 64, e.seqlen_k); ++key) {
      for (int q = 0; q < e.seqlen_q; ++q) {
        ASSERT_EQ(e.mask().visible(q, key, e.seqlen_q, e.seqlen_k),
                  q >= first_query(e, key) && q < end_query(e, key))
            << describe(e) << " " << q << " " << key << ", first " << first_key;
      }
    }
  });
  EXPECT_GT(first_query(BackwardExtents{10, 10, false}, 10), 1 << 30);  // past the end: by none
  EXPECT_GT(first_query(SequenceExtents::of(10, 10, {3, 3}, 10), 10), 1 << 30);
}

TEST(QuerySteps, unmasked_queries_see_every_key_of_the_warpgroup) {
  for_each_key_block(64, [](const auto& e, int first_key) {
    const KeyRangeOf<int> unmasked = unmasked_queries(e, first_key, 64);
    for (int q = 0; q < e.seqlen_q; ++q) {
      bool all = true;
      for (int k = first_key; k < first_key + 64; ++k) {
        all &= k < e.seqlen_k && e.mask().visible(q, k, e.seqlen_q, e.seqlen_k);
      }
      EXPECT_EQ(all, unmasked.contains(q)) << describe(e) << " " << q << " " << first_key;
    }
  });
}

// A CTA that waits is launched after those that it waits for: else these might never start.
template <class Extents>
void expect_launch_order(const Extents& e) {
  const KeyBlockOrder order{(e.seqlen_k + 127) / 128, 1, 1, 1, 0, last_keys_first(e)};
  std::vector<int> next((e.seqlen_q + kM - 1) / kM, 0);
  for (int tile = 0; tile < order.num_tiles(); ++tile) {
    const int n = order.at(tile).n_block;
    const QuerySteps steps = query_steps(e, n * 128, 128, kM);
    for (int m = steps.first_block; m < steps.end_block; ++m) {
      EXPECT_EQ(dq_order_of(e, n, 128, m, kM), next[size_t(m)]++) << describe(e) << n << " m " << m;
    }
  }
}

TEST(QuerySteps, semaphore_turns_come_once_each_and_in_the_order_of_launches) {
  for (const int sq : {1, 64, 130, 500}) {
    for (const int sk : {1, 128, 200, 600}) {
      for (const bool causal : {false, true}) expect_launch_order(BackwardExtents{sq, sk, causal});
      for_each_window([&](int left, int right) {
        for (const int chunk : {0, 1, 100, 128, 300, 384}) {
          expect_launch_order(SequenceExtents::of(sq, sk, {left, right, chunk}, 0));
        }
      });
    }
  }
}

// Packed sequences share a scratch: no block belongs to two of them, or lies behind its end.
TEST(ScratchPlace, packed_sequences_have_blocks_of_their_own) {
  unsigned random = 1;
  for (int trial = 0; trial < 1000; ++trial) {
    const int count = trial % 20 + 1;
    int begin = 0, last_end = 0;
    for (int b = 0; b <= count; ++b) {  // the last one: rows that no sequence owns
      random = random * 1664525 + 1013904223;
      const int length = int(random >> 20) % (trial % 3 ? 200 : 3);
      const ScratchPlace place = ScratchPlace::of_packed(b, begin, kM);
      EXPECT_EQ(place.batch, 0);
      EXPECT_GE(place.first_block, last_end);
      last_end = place.first_block + (length + kM - 1) / kM;
      begin += length;
    }
    EXPECT_LE(last_end, (begin + kM - 1) / kM + count + 1);  // what backward_plan.cpp allocates
  }
}

}  // namespace
}  // namespace fa3::hopper
