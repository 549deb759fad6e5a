// SPDX-License-Identifier: Apache-2.0
#include "ring/schedule/schedule.h"

#include <algorithm>

namespace fa3::ring {
namespace {

// Keys that nobody asked for, but that lie between two that are sent: so few cost less than a
// message more. Assumed: 64 rows of 8 heads of 128 channels are 128 KiB, 0.5 us of NVLink.
constexpr int64_t kSmallGap = 64;

int64_t bound(int64_t rows, int64_t i, int64_t parts) {
  return i * rows / parts;  // parts differ by a row where the numbers do not divide
}

// In order, as one where no row or a few are between them.
std::vector<Range> merged(std::vector<Range> ranges) {
  std::ranges::sort(ranges, {}, &Range::begin);
  std::vector<Range> found;
  for (const Range& range : ranges) {
    if (!found.empty() && range.begin <= found.back().end + kSmallGap) {
      found.back().end = std::max(found.back().end, range.end);
    } else {
      found.push_back(range);
    }
  }
  return found;
}

}  // namespace

std::vector<Piece> pieces_of(const Whole& whole, int32_t rank) {
  const int64_t world = whole.world, r = rank;
  std::vector<Piece> found;
  int64_t row = 0;
  const auto add = [&](int64_t document, int64_t begin, int64_t end) {
    if (begin >= end) return;
    const bool goes_on =
        !found.empty() && found.back().document == document && found.back().positions.end == begin;
    if (goes_on) {
      found.back().positions.end = end;
    } else {
      found.push_back({document, {begin, end}, row});
    }
    row += end - begin;
  };
  int64_t total = 0, start = 0, document = 0;
  for (int64_t rows : whole.lengths) total += rows;
  for (int64_t rows : whole.lengths) {
    if (whole.layout == FA3_RING_CONTIGUOUS) {
      add(document, std::max(bound(total, r, world) - start, int64_t{0}),
          std::min(bound(total, r + 1, world) - start, rows));
    } else if (whole.layout == FA3_RING_BY_DOCUMENT) {
      add(document, bound(rows, r, world), bound(rows, r + 1, world));
    } else {
      for (int64_t part : {r, 2 * world - 1 - r}) {
        add(document, bound(rows, part, 2 * world), bound(rows, part + 1, 2 * world));
      }
    }
    start += rows;
    ++document;
  }
  return found;
}

int64_t num_rows(const Whole& whole, int32_t rank) {
  const std::vector<Piece> pieces = pieces_of(whole, rank);
  return pieces.empty() ? 0 : pieces.back().row + pieces.back().positions.count();
}

Stage stage_of(const Whole& whole, int32_t rank, int32_t source) {
  const std::vector<Rectangle> found =
      rectangles_of(pieces_of(whole, rank), pieces_of(whole, source), whole.mask);
  Stage stage;
  stage.calls = calls_of(found, whole.is_packed ? Join::kInOrder : Join::kApart);
  if (rank == source) {
    stage.keys = {{0, num_rows(whole, rank)}};
  } else {
    for (const Rectangle& one : found) stage.keys.push_back(one.keys);
    stage.keys = merged(stage.keys);
  }
  return stage;
}

bool sees(const Whole& whole, int32_t rank, int32_t source) {
  return sees(pieces_of(whole, rank), pieces_of(whole, source), whole.mask);
}

int32_t farthest_reader(const Whole& whole, int32_t source) {
  for (int32_t by = whole.world - 1; by > 0; --by) {
    if (sees(whole, (source + by) % whole.world, source)) return by;
  }
  return 0;
}

}  // namespace fa3::ring
