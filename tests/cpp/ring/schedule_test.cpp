// SPDX-License-Identifier: Apache-2.0
//
// The calls of all ranks see each pair of the mask once, in keys that were sent.
#include "ring/schedule.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "ring/steps.h"

namespace fa3::ring {
namespace {

bool is_visible(const Mask& mask, int64_t query, int64_t key) {
  return (mask.left == kUnbounded || key >= query - mask.left) &&
         (mask.right == kUnbounded || key <= query + mask.right);
}

// What a call of fa3.h sees: bottom-right aligned.
bool sees(const Call& call, int64_t row, int64_t key) {
  const int64_t offset = call.keys.count() - call.rows.count() + call.shift;
  return is_visible(call.window, row - call.rows.begin + offset, key - call.keys.begin);
}

// Places in the whole of rows, in order.
std::vector<int64_t> places(const std::vector<Range>& ranges) {
  std::vector<int64_t> found;
  for (const Range& range : ranges) {
    for (int64_t i = range.begin; i < range.end; ++i) found.push_back(i);
  }
  return found;
}

struct Case {
  int64_t layout;
  Mask mask;
};

const Case kCases[] = {
    {FA3_RING_ZIGZAG, {}},          {FA3_RING_ZIGZAG, {kUnbounded, 0}},
    {FA3_RING_ZIGZAG, {5, 0}},      {FA3_RING_ZIGZAG, {0, 7}},
    {FA3_RING_ZIGZAG, {3, 2}},      {FA3_RING_ZIGZAG, {kUnbounded, 4}},
    {FA3_RING_CONTIGUOUS, {}},      {FA3_RING_CONTIGUOUS, {kUnbounded, 0}},
    {FA3_RING_CONTIGUOUS, {5, 0}},  {FA3_RING_CONTIGUOUS, {2, kUnbounded}},
    {FA3_RING_CONTIGUOUS, {40, 9}},
};

void check_all_pairs(const Whole& whole) {
  const auto n = static_cast<size_t>(whole.seqlen);
  std::vector<int> seen(n * n);
  size_t rows_held = 0;
  for (int32_t rank = 0; rank < whole.world; ++rank) {
    const std::vector<int64_t> rows = places(rows_of(whole, rank));
    rows_held += rows.size();
    ASSERT_EQ(num_rows(whole, rank), int64_t(rows.size()));
    for (int32_t source = 0; source < whole.world; ++source) {
      const std::vector<int64_t> keys_there = places(rows_of(whole, source));
      const Stage stage = stage_of(whole, rank, source);
      std::vector<int64_t> arrived;
      for (int64_t key : places(stage.keys)) arrived.push_back(keys_there.at(size_t(key)));
      ASSERT_EQ(stage.num_keys, int64_t(arrived.size()));
      EXPECT_EQ(stage.calls.empty(), !sees(whole, rank, source));
      for (const Call& call : stage.calls) {
        const Range of_source = stage.rows_of_source(call);
        for (int64_t key = call.keys.begin; key < call.keys.end; ++key) {
          const int64_t place = arrived.at(size_t(key));
          const int64_t back = of_source.begin + key - call.keys.begin;
          ASSERT_EQ(place, keys_there.at(size_t(back)));
          for (int64_t row = call.rows.begin; row < call.rows.end; ++row) {
            const auto query = size_t(rows.at(size_t(row)));
            seen[query * n + size_t(place)] += sees(call, row, key) ? 1 : 0;
          }
        }
      }
    }
  }
  EXPECT_EQ(rows_held, n);
  for (size_t q = 0; q < n; ++q) {
    for (size_t k = 0; k < n; ++k) {
      ASSERT_EQ(seen[q * n + k], is_visible(whole.mask, int64_t(q), int64_t(k)) ? 1 : 0)
          << "query " << q << ", key " << k;
    }
  }
}

TEST(RingSchedule, SeesEachPairOnce) {
  for (const Case& of : kCases) {
    for (int32_t world : {1, 2, 3, 4, 7}) {
      for (int64_t seqlen : {0, 1, 2, 3, 5, 8, 13, 24, 57}) {
        SCOPED_TRACE(testing::Message()
                     << "layout " << of.layout << ", window " << of.mask.left << ", "
                     << of.mask.right << ", world " << world << ", rows " << seqlen);
        check_all_pairs({seqlen, of.layout, world, of.mask});
        if (HasFatalFailure()) return;
      }
    }
  }
}

// A causal zigzag is what it is for: one call a stage, and three quarters of the keys.
TEST(RingSchedule, ACausalZigzagHasOneCallAStage) {
  const Whole whole = {64, FA3_RING_ZIGZAG, 4, {kUnbounded, 0}};
  for (int32_t rank = 0; rank < 4; ++rank) {
    for (int32_t source = 0; source < 4; ++source) {
      const Stage stage = stage_of(whole, rank, source);
      ASSERT_EQ(stage.calls.size(), 1u);
      EXPECT_EQ(stage.num_keys, source < rank ? 8 : 16);
      EXPECT_EQ(stage.calls[0].rows.count(), source > rank ? 8 : 16);
    }
  }
}

TEST(RingSchedule, KeysOutsideOfAWindowAreNotSent) {
  const Whole whole = {64, FA3_RING_CONTIGUOUS, 4, {3, 0}};
  EXPECT_EQ(stage_of(whole, 2, 1).num_keys, 3);
  EXPECT_EQ(stage_of(whole, 2, 0).num_keys, 0);
  EXPECT_EQ(farthest_reader(whole, 1), 1);
  EXPECT_EQ(farthest_reader(whole, 3), 0);
}

// Each row has a beginning before it goes on, and one end.
TEST(RingSteps, RowsBeginOnceAndEndOnce) {
  for (const Case& of : kCases) {
    for (int32_t world : {1, 2, 3, 4}) {
      for (int64_t seqlen : {0, 1, 3, 8, 29}) {
        const Whole whole = {seqlen, of.layout, world, of.mask};
        for (int32_t rank = 0; rank < world; ++rank) {
          const Steps steps = steps_of(whole, rank);
          std::vector<int> begun(size_t(num_rows(whole, rank))), ended = begun;
          for (const auto& stage : steps.of_stage) {
            for (const Step& step : stage) {
              for (int64_t row = step.call.rows.begin; row < step.call.rows.end; ++row) {
                EXPECT_EQ(begun.at(size_t(row)) > 0, step.continues);
                EXPECT_EQ(ended[size_t(row)], 0);
                begun[size_t(row)] = 1;
                ended[size_t(row)] += step.ends ? 1 : 0;
              }
            }
          }
          for (const Range& rows : steps.rows_without_end()) {
            for (int64_t row = rows.begin; row < rows.end; ++row) ended.at(size_t(row)) += 1;
          }
          EXPECT_EQ(begun, std::vector<int>(begun.size(), 1));
          EXPECT_EQ(ended, begun);
        }
      }
    }
  }
}

}  // namespace
}  // namespace fa3::ring
