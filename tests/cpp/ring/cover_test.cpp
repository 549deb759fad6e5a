// SPDX-License-Identifier: Apache-2.0
//
// The calls that fa3_ring_rectangles() and fa3_ring_calls() make of a mask see each pair once.
#include <fa3/ring.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace fa3::test {
namespace {

using Pieces = std::vector<fa3_ring_piece>;

const Pieces kRows = {{0, 0, 5}, {0, 11, 16}, {1, 0, 7}, {3, 4, 12}, {4, 0, 3}};
const Pieces kKeys = {{0, 0, 8}, {0, 8, 14}, {1, 0, 7}, {2, 0, 4}, {3, 0, 12}, {4, 0, 3}};

bool is_visible(const int64_t (&window)[2], int64_t query, int64_t key) {
  return (window[0] < 0 || key >= query - window[0]) && (window[1] < 0 || key <= query + window[1]);
}

// (document, position) of each row of the pieces.
std::vector<std::pair<int64_t, int64_t>> places(const Pieces& pieces) {
  std::vector<std::pair<int64_t, int64_t>> found;
  for (const fa3_ring_piece& of : pieces) {
    for (int64_t i = of.begin; i < of.end; ++i) found.emplace_back(of.document, i);
  }
  return found;
}

struct Calls {
  std::vector<fa3_ring_call> calls;
  std::vector<int32_t> lengths;
};

std::vector<fa3_ring_rectangle> rectangles(const int64_t (&window)[2], int64_t step) {
  const auto ask = [&](fa3_ring_rectangle* found, int64_t* count) {
    EXPECT_EQ(fa3_ring_rectangles(kRows.data(), int64_t(kRows.size()), kKeys.data(),
                                  int64_t(kKeys.size()), window, step, found, count),
              FA3_OK);
  };
  int64_t count = 0;
  ask(nullptr, &count);
  std::vector<fa3_ring_rectangle> found(static_cast<size_t>(count));
  ask(found.data(), &count);
  EXPECT_EQ(size_t(count), found.size());
  return found;
}

Calls calls_of(const std::vector<fa3_ring_rectangle>& of, int32_t join) {
  Calls made{std::vector<fa3_ring_call>(of.size()), std::vector<int32_t>(8 * of.size())};
  int64_t count = 0;
  EXPECT_EQ(fa3_ring_calls(of.data(), int64_t(of.size()), join, made.calls.data(), &count,
                           made.lengths.data()),
            FA3_OK);
  made.calls.resize(size_t(count));
  return made;
}

// How often the calls see each pair.
std::vector<int> count_pairs(const Calls& made, int64_t rows, int64_t keys) {
  std::vector<int> seen(size_t(rows * keys));
  const int32_t* next = made.lengths.data();
  for (const fa3_ring_call& call : made.calls) {
    const int64_t window[2] = {call.window_left, call.window_right};
    const int64_t sequences = call.num_lengths > 0 ? call.num_lengths - 1 : 1;
    for (int64_t i = 0; i < sequences; ++i) {
      int64_t row = call.rows[0], row_end = call.rows[1], key = call.keys[0],
              key_end = call.keys[1];
      if (call.num_lengths > 0) {
        const int32_t* const of_keys = next + call.num_lengths;
        row_end = row + next[i + 1], row += next[i];
        key_end = key + of_keys[i + 1], key += of_keys[i];
      }
      const int64_t shift = (key_end - key) - (row_end - row) + call.window_shift;
      for (int64_t q = row; q < row_end; ++q) {
        for (int64_t k = key; k < key_end; ++k) {
          seen[size_t(q * keys + k)] += is_visible(window, q - row + shift, k - key) ? 1 : 0;
        }
      }
    }
    next += 2 * call.num_lengths;
  }
  return seen;
}

TEST(RingCover, SeesEachPairOnce) {
  const auto rows = places(kRows), keys = places(kKeys);
  for (const int64_t left : {-1, 0, 3, 9}) {
    for (const int64_t right : {-1, 0, 4}) {
      const int64_t window[2] = {left, right};
      std::vector<int> expected;
      for (const auto& [of_row, query] : rows) {
        for (const auto& [of_key, key] : keys) {
          expected.push_back(of_row == of_key && is_visible(window, query, key) ? 1 : 0);
        }
      }
      for (const int64_t step : {0, 1, 4}) {
        for (const int32_t join : {FA3_RING_APART, FA3_RING_IN_ORDER, FA3_RING_TOUCHING}) {
          SCOPED_TRACE(testing::Message() << "window " << left << ", " << right << ", step " << step
                                          << ", join " << join);
          const Calls made = calls_of(rectangles(window, step), join);
          EXPECT_EQ(count_pairs(made, int64_t(rows.size()), int64_t(keys.size())), expected);
        }
      }
    }
  }
}

TEST(RingCover, RectanglesKnowTheirPlaceInTheDocument) {
  const auto rows = places(kRows), keys = places(kKeys);
  const int64_t window[2] = {6, 0};
  for (const int64_t step : {0, 4}) {
    for (const fa3_ring_rectangle& of : rectangles(window, step)) {
      EXPECT_EQ(rows.at(size_t(of.rows[0])), std::make_pair(of.document, of.query));
      EXPECT_EQ(keys.at(size_t(of.keys[0])), std::make_pair(of.document, of.key));
    }
  }
}

TEST(RingCover, JoinsOnlyWhatFollows) {
  const int64_t far = int64_t{1} << 60;
  const auto causal = [&](int64_t row, int64_t key) {
    return fa3_ring_rectangle{{row, row + 4}, {key, key + 4}, -far, key - row, 0, row, key};
  };
  const std::vector<fa3_ring_rectangle> of = {causal(0, 0), causal(4, 4), causal(10, 8)};
  EXPECT_EQ(calls_of(of, FA3_RING_APART).calls.size(), 3u);
  EXPECT_EQ(calls_of(of, FA3_RING_IN_ORDER).calls.size(), 1u);
  EXPECT_EQ(calls_of(of, FA3_RING_TOUCHING).calls.size(), 2u);
  // A document of one row has the mask of the others, though it hides no key there.
  const std::vector<fa3_ring_rectangle> whole = {
      causal(0, 0), {{4, 5}, {4, 5}, -far, 0, 1, 0, 0}, causal(5, 5)};
  EXPECT_EQ(calls_of(whole, FA3_RING_IN_ORDER).calls.size(), 2u);
  EXPECT_EQ(calls_of(whole, FA3_RING_WHOLE).calls.size(), 1u);
}

}  // namespace
}  // namespace fa3::test
