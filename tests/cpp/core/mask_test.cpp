// SPDX-License-Identifier: Apache-2.0
//
// mask_rule.h, block_range.h and visible_pairs.h against the contract's sentence, by brute force
// over small sizes.
#include <gtest/gtest.h>

#include <vector>

#include "core/mask/block_range.h"
#include "core/mask/mask_rule.h"
#include "core/mask/visible_pairs.h"

namespace fa3::test {
namespace {

constexpr int64_t kUnbounded = MaskRule::kUnbounded;

struct Sizes {
  MaskRule mask;
  int64_t seqlen_q, seqlen_k;
};

// "i + offset - left <= j <= i + offset + right", either side may be negative, offset = sk - sq; "i
// + offset and j are in the same chunk".
bool sees(const Sizes& at, int64_t q_row, int64_t key) {
  const int64_t level = q_row + at.seqlen_k - at.seqlen_q;
  if (at.mask.chunk > 0 && (level < 0 || level / at.mask.chunk != key / at.mask.chunk))
    return false;
  return (at.mask.left == kUnbounded || key >= level - at.mask.left) &&
         (at.mask.right == kUnbounded || key <= level + at.mask.right);
}

// Sides of a window over sequences of at most `longest`, past them too, and no side.
std::vector<int64_t> reaches(int64_t longest) {
  std::vector<int64_t> all = {kUnbounded};
  for (int64_t reach = -longest - 1; reach <= longest + 1; ++reach) all.push_back(reach);
  return all;
}

template <class Visitor>
void for_each_sizes(int64_t longest, Visitor&& visit) {
  for (int64_t seqlen_q = 0; seqlen_q <= longest; ++seqlen_q) {
    for (int64_t seqlen_k = 0; seqlen_k <= longest; ++seqlen_k) {
      for (int64_t left : reaches(longest)) {
        for (int64_t right : reaches(longest)) {
          if (left != kUnbounded && right != kUnbounded && left + right < 0) continue;
          for (int64_t chunk = 0; chunk <= 2 * longest; chunk += chunk < longest ? 1 : longest) {
            visit(Sizes{{left, right, chunk}, seqlen_q, seqlen_k});
          }
        }
      }
    }
  }
}

std::string text(const Sizes& at) {
  return "left " + std::to_string(at.mask.left) + " right " + std::to_string(at.mask.right) +
         " chunk " + std::to_string(at.mask.chunk) + " sq " + std::to_string(at.seqlen_q) + " sk " +
         std::to_string(at.seqlen_k);
}

TEST(MaskRule, keys_of_a_row_are_those_of_the_contract) {
  for_each_sizes(6, [](const Sizes& at) {
    for (int64_t q_row = 0; q_row < at.seqlen_q; ++q_row) {
      const KeyRange keys = at.mask.keys_of(q_row, at.seqlen_q, at.seqlen_k);
      for (int64_t key = 0; key < at.seqlen_k; ++key) {
        ASSERT_EQ(keys.contains(key), sees(at, q_row, key))
            << text(at) << " row " << q_row << " key " << key;
        ASSERT_EQ(at.mask.visible(q_row, key, at.seqlen_q, at.seqlen_k), keys.contains(key));
      }
      ASSERT_GE(keys.begin, 0) << text(at);
      ASSERT_LE(keys.end, at.seqlen_k) << text(at);
    }
  });
}

TEST(MaskRule, last_query_is_level_with_last_key) {
  constexpr MaskRule causal{kUnbounded, 0};
  static_assert(causal.keys_of(4, 5, 9).end == 9);
  static_assert(causal.keys_of(0, 5, 9).end == 5);
  static_assert(causal.keys_of(0, 9, 5).empty());
  static_assert(causal.keys_of(8, 9, 5).end == 5);
  static_assert(MaskRule{}.hides_nothing());
  static_assert(!causal.hides_nothing());
}

// visible must hold every seen key, free only keys that all rows see; both as large as can be.
TEST(BlockRange, visible_is_the_union_and_free_the_intersection) {
  for_each_sizes(6, [](const Sizes& at) {
    for (int64_t begin = 0; begin < at.seqlen_q; ++begin) {
      for (int64_t end = begin + 1; end <= at.seqlen_q; ++end) {
        const BlockRange range = block_range(at.mask, begin, end, at.seqlen_q, at.seqlen_k);
        for (int64_t key = 0; key < at.seqlen_k; ++key) {
          int64_t rows_seeing = 0;
          for (int64_t q_row = begin; q_row < end; ++q_row) rows_seeing += sees(at, q_row, key);
          const bool missed = rows_seeing > 0 && !range.visible.contains(key);
          ASSERT_FALSE(missed) << text(at);
          const bool all = rows_seeing == end - begin;
          ASSERT_EQ(range.free.contains(key), all)
              << text(at) << " rows [" << begin << ", " << end << ") key " << key;
        }
        if (range.visible.empty()) continue;
        ASSERT_GE(range.visible.begin, 0) << text(at);
        ASSERT_LE(range.visible.end, at.seqlen_k) << text(at);
      }
    }
  });
}

TEST(BlockRange, visible_ends_at_keys_that_a_row_sees) {
  for_each_sizes(6, [](const Sizes& at) {
    for (int64_t begin = 0; begin < at.seqlen_q; ++begin) {
      for (int64_t end = begin + 1; end <= at.seqlen_q; ++end) {
        const KeyRange range = block_range(at.mask, begin, end, at.seqlen_q, at.seqlen_k).visible;
        if (range.empty()) continue;
        bool first_seen = false, last_seen = false;
        for (int64_t q_row = begin; q_row < end; ++q_row) {
          first_seen |= sees(at, q_row, range.begin);
          last_seen |= sees(at, q_row, range.end - 1);
        }
        // Rows that see nothing may stretch the range by keys that no row sees, never shrink it.
        const bool all_see = !at.mask.keys_of(begin, at.seqlen_q, at.seqlen_k).empty() &&
                             !at.mask.keys_of(end - 1, at.seqlen_q, at.seqlen_k).empty();
        ASSERT_TRUE(!all_see || (first_seen && last_seen)) << text(at);
      }
    }
  });
}

// Where chunks cut a band beside the diagonal, it may hold more of them.
TEST(QueryRange, holds_exactly_the_queries_that_see_a_key_of_the_block) {
  for_each_sizes(6, [](const Sizes& at) {
    const auto beside = [](int64_t reach) { return reach < 0 && reach != kUnbounded; };
    const bool may_hold_more = at.mask.chunk > 0 && (beside(at.mask.left) || beside(at.mask.right));
    for (int64_t begin = 0; begin < at.seqlen_k; ++begin) {
      for (int64_t end = begin + 1; end <= at.seqlen_k; ++end) {
        const KeyRange rows = query_range(at.mask, begin, end, at.seqlen_q, at.seqlen_k);
        for (int64_t q_row = 0; q_row < at.seqlen_q; ++q_row) {
          bool any = false;
          for (int64_t key = begin; key < end; ++key) any |= sees(at, q_row, key);
          ASSERT_EQ(rows.contains(q_row) && (any || !may_hold_more), any)
              << text(at) << " keys [" << begin << ", " << end << ") row " << q_row;
        }
        if (rows.empty()) continue;
        ASSERT_GE(rows.begin, 0) << text(at);
        ASSERT_LE(rows.end, at.seqlen_q) << text(at);
      }
    }
  });
}

TEST(VisiblePairs, are_as_many_as_the_rule_shows) {
  for_each_sizes(6, [](const Sizes& at) {
    int64_t pairs = 0;
    for (int64_t row = 0; row < at.seqlen_q; ++row) {
      for (int64_t key = 0; key < at.seqlen_k; ++key) pairs += sees(at, row, key) ? 1 : 0;
    }
    EXPECT_EQ(visible_pairs(at.mask, at.seqlen_q, at.seqlen_k), pairs) << text(at);
  });
}

}  // namespace
}  // namespace fa3::test
