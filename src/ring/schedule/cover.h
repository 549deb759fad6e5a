// SPDX-License-Identifier: Apache-2.0
//
// Rectangles of a mask, and the calls that compute them: as few as the mask allows.
//
// A query at position i of its document sees the key at position j if low <= j - i <= high. Rows
// and keys that a rank holds are pieces of documents, so between the index of a row and that of a
// key the same rule holds, piece by piece, with bounds moved. Pieces need only one call where one
// band says the same for all of them. include/fa3/ring.h offers rectangles and calls to callers.
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

// Rows of a document that a rank has, and where they are among all rows of the rank.
struct Piece {
  int64_t document = 0;
  Range positions;
  int64_t row = 0;
};

// A document, and positions of a query and a key in it.
struct Origin {
  int64_t document = 0;
  int64_t query = 0;
  int64_t key = 0;
  bool operator==(const Origin&) const = default;
};

struct Rectangle {
  Range rows;
  Range keys;
  Band band;
  Origin origin;  // of the first row and key

  // The band without bounds that exclude nothing here; kNothing if nothing is seen.
  Band normal() const {
    const int64_t nearest = keys.begin - rows.end + 1, farthest = keys.end - 1 - rows.begin;
    if (band.low > std::min(band.high, farthest) || band.high < nearest) return kNothing;
    return {band.low > nearest ? band.low : -kFar, band.high < farthest ? band.high : kFar};
  }

  // Without rows that see no key and keys that no row sees; whole steps at the beginnings.
  Rectangle trimmed(int64_t step = 1) const {
    Rectangle r = *this;
    const int64_t first = std::max<int64_t>(0, keys.begin - band.high - rows.begin);
    r.rows.begin += first / step * step;
    r.rows.end = std::min(rows.end, keys.end - band.low);
    const int64_t first_key = std::max<int64_t>(0, r.rows.begin + band.low - keys.begin);
    r.keys.begin += first_key / step * step;
    r.keys.end = std::min(keys.end, r.rows.end + band.high);
    r.origin.query += r.rows.begin - rows.begin;
    r.origin.key += r.keys.begin - keys.begin;
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
  Origin origin;  // of the first sequence
  bool operator==(const Call&) const = default;

  // Whether a sequence has one key.
  bool has_one_key() const;
};

// The rectangles of all documents between two lists of pieces, whose documents ascend: as few as
// see what the mask shows. step: if not 0, of one piece of rows and one of keys, and both begin a
// multiple of it behind their piece's beginning.
std::vector<Rectangle> rectangles_of(const std::vector<Piece>& rows, const std::vector<Piece>& keys,
                                     const Mask& mask, int64_t step = 0);

// Whether any of these rows sees any of these keys.
bool sees(const std::vector<Piece>& rows, const std::vector<Piece>& keys, const Mask& mask);

// Which rectangles are sequences of one call; what lies between two of them is a sequence without
// keys, or without rows.
enum class Join {
  kApart,     // none
  kInOrder,   // of one mask, which follow one another
  kTouching,  // the same, without rows between them
  kWhole,     // all: one mask, which counts also where it hides nothing
};

std::vector<Call> calls_of(const std::vector<Rectangle>& found, Join join);

}  // namespace fa3::ring
