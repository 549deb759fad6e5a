// SPDX-License-Identifier: Apache-2.0
//
// Rectangles of a mask, and the calls that compute them: as few as the mask allows.
//
// A query at position i of its document sees the key at position j if low <= j - i <= high. Rows
// and keys that a rank holds are pieces of documents, so between the index of a row and that of a
// key the same rule holds, piece by piece, with bounds moved. Pieces need only one call where one
// band says the same for all of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace fa3::ring {

// Half-open: rows of a sequence, of a document, or of a rank.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

inline constexpr int64_t kUnbounded = -1;

// A query sees the keys up to `left` before and `right` behind its own place, or all of a side.
struct Mask {
  int64_t left = kUnbounded;
  int64_t right = kUnbounded;
  bool operator==(const Mask&) const = default;
};

inline constexpr int64_t kFar = int64_t{1} << 60;  // a bound that bounds nothing

// low <= key - query <= high, between indices.
struct Band {
  int64_t low = -kFar;
  int64_t high = kFar;
  bool operator==(const Band&) const = default;
};
inline constexpr Band kNothing = {kFar, -kFar};

struct Rectangle {
  Range rows;
  Range keys;
  Band band;

  // The band without bounds that exclude nothing here; kNothing if nothing is seen.
  Band normal() const {
    const int64_t nearest = keys.begin - rows.end + 1, farthest = keys.end - 1 - rows.begin;
    if (band.low > std::min(band.high, farthest) || band.high < nearest) return kNothing;
    return {band.low > nearest ? band.low : -kFar, band.high < farthest ? band.high : kFar};
  }

  // Without rows that see no key and keys that no row sees.
  Rectangle trimmed() const {
    Rectangle r = *this;
    r.rows.begin += std::max<int64_t>(0, keys.begin - band.high - rows.begin);
    r.rows.end = std::min(rows.end, keys.end - band.low);
    r.keys.begin += std::max<int64_t>(0, r.rows.begin + band.low - keys.begin);
    r.keys.end = std::min(keys.end, r.rows.end + band.high);
    return r;
  }
};

// Rows of a rank, keys of a stage, and the mask between them as options say it: bottom-right
// aligned. Of several sequences also their lengths, cumulative from 0.
struct Call {
  Range rows;
  Range keys;
  Mask window;
  int64_t shift = 0;
  std::vector<int32_t> cu_rows, cu_keys;
  bool operator==(const Call&) const = default;

  // Whether a sequence has one key.
  bool has_one_key() const;
};

using Grid = std::vector<std::vector<Rectangle>>;  // of neighbouring cells: [rows][keys]

bool sees_nothing(const Grid& grid);

// The fewest rectangles that see what a grid sees, trimmed.
std::vector<Rectangle> cover(const Grid& grid);

// Calls for the rectangles of all documents. joins: those of one mask that follow one another are
// sequences of one call, and what lies between them is a sequence without keys, or without rows.
std::vector<Call> calls_of(const std::vector<Rectangle>& found, bool joins);

}  // namespace fa3::ring
