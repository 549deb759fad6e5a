// SPDX-License-Identifier: Apache-2.0
//
// The calls of all ranks see each pair of the mask once, in keys that were sent.
#include "ring/schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ring/schedule/steps.h"

namespace fa3::ring {
namespace {

bool is_visible(const Mask& mask, int64_t query, int64_t key) {
  return (mask.left == kUnbounded || key >= query - mask.left) &&
         (mask.right == kUnbounded || key <= query + mask.right);
}

// What a call of fa3.h sees: bottom-right aligned, each sequence for itself.
bool sees(const Call& call, int64_t row, int64_t key) {
  row -= call.rows.begin;
  key -= call.keys.begin;
  int64_t rows = call.rows.count(), keys = call.keys.count();
  for (size_t i = 1; i < call.cu_rows.size(); ++i) {
    const int64_t row_begin = call.cu_rows[i - 1], key_begin = call.cu_keys[i - 1];
    rows = call.cu_rows[i] - row_begin;
    keys = call.cu_keys[i] - key_begin;
    if (row >= call.cu_rows[i] || row < row_begin) continue;
    if (key >= call.cu_keys[i] || key < key_begin) return false;
    row -= row_begin;
    key -= key_begin;
    break;
  }
  return is_visible(call.window, row + keys - rows + call.shift, key);
}

// Places in the whole of a rank's rows, in order.
std::vector<int64_t> places(const Whole& whole, int32_t rank) {
  std::vector<int64_t> found, starts = {0};
  for (int64_t rows : whole.lengths) starts.push_back(starts.back() + rows);
  for (const Piece& piece : pieces_of(whole, rank)) {
    EXPECT_EQ(piece.row, int64_t(found.size()));
    for (int64_t i = piece.positions.begin; i < piece.positions.end; ++i) {
      found.push_back(starts.at(size_t(piece.document)) + i);
    }
  }
  return found;
}

// (document, first position, last one + 1) of each of a rank's pieces.
using Pieces = std::vector<std::vector<int64_t>>;
Pieces pieces_in(int64_t layout, int32_t rank) {
  Pieces found;
  for (const Piece& piece : pieces_of({.lengths = {5, 0, 8}, .layout = layout, .world = 2}, rank)) {
    found.push_back({piece.document, piece.positions.begin, piece.positions.end});
  }
  return found;
}

TEST(RingLayout, says_which_rows_a_rank_has) {
  EXPECT_EQ(pieces_in(FA3_RING_BY_DOCUMENT, 0), (Pieces{{0, 0, 2}, {2, 0, 4}}));
  EXPECT_EQ(pieces_in(FA3_RING_BY_DOCUMENT, 1), (Pieces{{0, 2, 5}, {2, 4, 8}}));
  EXPECT_EQ(pieces_in(FA3_RING_CONTIGUOUS, 0), (Pieces{{0, 0, 5}, {2, 0, 1}}));
  EXPECT_EQ(pieces_in(FA3_RING_ZIGZAG, 1), (Pieces{{0, 1, 3}, {2, 2, 6}}));
}

bool holds(const std::vector<Range>& ranges, int64_t row) {
  return std::ranges::any_of(
      ranges, [&](const Range& range) { return range.begin <= row && row < range.end; });
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
    {FA3_RING_CONTIGUOUS, {40, 9}}, {FA3_RING_BY_DOCUMENT, {kUnbounded, 0}},
    {FA3_RING_BY_DOCUMENT, {3, 4}},
};

void check_all_pairs(const Whole& whole) {
  std::vector<int64_t> document, position;  // of each row of the whole
  for (size_t i = 0; i < whole.lengths.size(); ++i) {
    for (int64_t row = 0; row < whole.lengths[i]; ++row) {
      document.push_back(int64_t(i));
      position.push_back(row);
    }
  }
  const size_t n = document.size();
  std::vector<int> seen(n * n);
  size_t rows_held = 0;
  for (int32_t rank = 0; rank < whole.world; ++rank) {
    const std::vector<int64_t> rows = places(whole, rank);
    rows_held += rows.size();
    ASSERT_EQ(num_rows(whole, rank), int64_t(rows.size()));
    for (int32_t source = 0; source < whole.world; ++source) {
      const std::vector<int64_t> keys = places(whole, source);
      const Stage stage = stage_of(whole, rank, source);
      EXPECT_EQ(stage.calls.empty(), !sees(whole, rank, source));
      for (const Call& call : stage.calls) {
        ASSERT_LE(stage.hull().begin, call.keys.begin);
        ASSERT_GE(stage.hull().end, call.keys.end);
        for (int64_t key = call.keys.begin; key < call.keys.end; ++key) {
          for (int64_t row = call.rows.begin; row < call.rows.end; ++row) {
            if (!sees(call, row, key)) continue;
            ASSERT_TRUE(holds(stage.keys, key));
            seen[size_t(rows.at(size_t(row))) * n + size_t(keys.at(size_t(key)))] += 1;
          }
        }
      }
    }
  }
  EXPECT_EQ(rows_held, n);
  for (size_t q = 0; q < n; ++q) {
    for (size_t k = 0; k < n; ++k) {
      const bool visible =
          document[q] == document[k] && is_visible(whole.mask, position[q], position[k]);
      ASSERT_EQ(seen[q * n + k], visible ? 1 : 0) << "query " << q << ", key " << k;
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
        check_all_pairs({{seqlen}, of.layout, world, of.mask});
        if (HasFatalFailure()) return;
      }
    }
  }
}

const std::vector<int64_t> kDocuments[] = {{5, 0, 17, 1, 26}, {1, 1, 1}, {0, 40, 9}, {2}, {},
                                           {8, 8, 8, 8},      {0, 0}};

TEST(RingSchedule, SeesEachPairOfEachDocumentOnce) {
  for (const Case& of : kCases) {
    for (int32_t world : {1, 2, 3, 4}) {
      for (const auto& lengths : kDocuments) {
        SCOPED_TRACE(testing::Message() << "layout " << of.layout << ", window " << of.mask.left
                                        << ", " << of.mask.right << ", world " << world
                                        << ", documents " << testing::PrintToString(lengths));
        check_all_pairs({lengths, of.layout, world, of.mask, true});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(RingSchedule, DocumentsOfACausalZigzagAreOneCallAStage) {
  const Whole whole = {{64, 128, 32, 256}, FA3_RING_ZIGZAG, 4, {kUnbounded, 0}, true};
  for (int32_t rank = 0; rank < 4; ++rank) {
    for (int32_t source = 0; source < 4; ++source) {
      EXPECT_EQ(stage_of(whole, rank, source).calls.size(), 1u);
    }
  }
}

// Documents of which a rank wants half are hundreds of messages, if each half is one.
TEST(RingSchedule, AFewKeysBetweenTwoRangesAreSentWithThem) {
  const Whole whole = {{64, 64, 64, 1024}, FA3_RING_ZIGZAG, 2, {kUnbounded, 0}, true};
  const std::vector<Range> expected = {{0, 96 + 256}};
  EXPECT_EQ(stage_of(whole, 1, 0).keys, expected);
  const Whole longer = {{512, 1024}, FA3_RING_ZIGZAG, 2, {kUnbounded, 0}, true};
  const std::vector<Range> apart = {{0, 128}, {256, 512}};
  EXPECT_EQ(stage_of(longer, 1, 0).keys, apart);
}

// A causal zigzag is what it is for: one call a stage, and three quarters of the keys.
TEST(RingSchedule, ACausalZigzagHasOneCallAStage) {
  const Whole whole = {{64}, FA3_RING_ZIGZAG, 4, {kUnbounded, 0}};
  for (int32_t rank = 0; rank < 4; ++rank) {
    for (int32_t source = 0; source < 4; ++source) {
      const Stage stage = stage_of(whole, rank, source);
      ASSERT_EQ(stage.calls.size(), 1u);
      EXPECT_EQ(stage.hull().count(), source < rank ? 8 : 16);
      EXPECT_EQ(stage.calls[0].rows.count(), source > rank ? 8 : 16);
    }
  }
}

TEST(RingSchedule, KeysOutsideOfAWindowAreNotSent) {
  const Whole whole = {{64}, FA3_RING_CONTIGUOUS, 4, {3, 0}};
  EXPECT_EQ(stage_of(whole, 2, 1).hull().count(), 3);
  EXPECT_EQ(stage_of(whole, 2, 0).hull().count(), 0);
  EXPECT_EQ(farthest_reader(whole, 1), 1);
  EXPECT_EQ(farthest_reader(whole, 3), 0);
}

// Each row has a beginning before it goes on, and one end.
TEST(RingSteps, RowsBeginOnceAndEndOnce) {
  for (const Case& of : kCases) {
    for (int32_t world : {1, 2, 3, 4}) {
      for (std::vector<int64_t> lengths :
           {std::vector<int64_t>{0}, {1}, {3}, {8}, {29}, {5, 0, 17, 1, 26}, {1, 1, 1}}) {
        const Whole whole = {lengths, of.layout, world, of.mask, lengths.size() > 1};
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
