// SPDX-License-Identifier: Apache-2.0
#include "ring/schedule.h"

#include <algorithm>
#include <optional>

namespace fa3::ring {
namespace {

constexpr int64_t kFar = int64_t{1} << 60;  // a bound that bounds nothing

// low <= key - query <= high, between places in two lists of rows.
struct Band {
  int64_t low = -kFar;
  int64_t high = kFar;
  bool operator==(const Band&) const = default;
};
constexpr Band kNothing = {kFar, -kFar};

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

using Grid = std::vector<std::vector<Rectangle>>;  // of neighbouring cells: [rows][keys]

// The part of a grid's rows and columns from one on.
Grid part(const Grid& grid, size_t row, size_t row_end, size_t column, size_t column_end) {
  Grid found;
  for (size_t i = row; i < row_end; ++i) {
    found.emplace_back(grid[i].begin() + ptrdiff_t(column),
                       grid[i].begin() + ptrdiff_t(column_end));
  }
  return found;
}

// One rectangle that sees what all the cells see, if there is one.
std::optional<Rectangle> joined(const Grid& grid) {
  const Rectangle &first = grid.front().front(), &last = grid.back().back();
  Rectangle whole = {{first.rows.begin, last.rows.end}, {first.keys.begin, last.keys.end}, {}};
  for (const auto& line : grid) {
    for (const Rectangle& of : line) {
      for (const Band& band : {of.normal(), of.band}) {
        const bool fits = std::ranges::all_of(grid, [&](const auto& cells) {
          return std::ranges::all_of(cells, [&](const Rectangle& cell) {
            return Rectangle{cell.rows, cell.keys, band}.normal() == cell.normal();
          });
        });
        whole.band = band;
        if (fits) return whole;
      }
    }
  }
  return std::nullopt;
}

bool sees_nothing(const Grid& grid) {
  return std::ranges::all_of(grid, [](const auto& cells) {
    return std::ranges::all_of(cells, [](const Rectangle& c) { return c.normal() == kNothing; });
  });
}

// The fewest rectangles that see what a grid sees.
std::vector<Rectangle> cover(const Grid& grid) {
  if (grid.empty() || grid.front().empty() || sees_nothing(grid)) return {};
  if (const auto one = joined(grid)) return {*one};
  const size_t rows = grid.size(), columns = grid.front().size();
  std::vector<Rectangle> best;
  const auto consider = [&](const Grid& a, const Grid& b) {
    std::vector<Rectangle> found = cover(a);
    const std::vector<Rectangle> rest = cover(b);
    found.insert(found.end(), rest.begin(), rest.end());
    if (best.empty() || found.size() < best.size()) best = found;
  };
  if (rows > 1) consider(part(grid, 0, 1, 0, columns), part(grid, 1, rows, 0, columns));
  if (columns > 1) consider(part(grid, 0, rows, 0, 1), part(grid, 0, rows, 1, columns));
  return best;
}

Grid grid_of(const Whole& whole, int32_t rank, int32_t source) {
  const std::vector<Range> rows = rows_of(whole, rank), keys = rows_of(whole, source);
  Grid grid;
  int64_t row = 0;
  for (const Range& q : rows) {
    std::vector<Rectangle>& line = grid.emplace_back();
    int64_t key = 0;
    for (const Range& k : keys) {
      const int64_t moved = (k.begin - key) - (q.begin - row);  // places are indices plus these
      const Band band = {whole.mask.left == kUnbounded ? -kFar : -whole.mask.left - moved,
                         whole.mask.right == kUnbounded ? kFar : whole.mask.right - moved};
      line.push_back({{row, row + q.count()}, {key, key + k.count()}, band});
      key += k.count();
    }
    row += q.count();
  }
  return grid;
}

Call call_of(const Rectangle& of) {
  const Band band = of.normal();
  const int64_t corner = of.keys.end - of.rows.end;  // key - query on the diagonal of the call
  Call call = {of.rows, of.keys, {}, 0};
  if (band.low == -kFar && band.high == kFar) return call;
  if (band.low == -kFar) {
    call.window.right = 0;
    call.shift = band.high - corner;
  } else if (band.high == kFar) {
    call.window.left = 0;
    call.shift = band.low - corner;
  } else {
    call.window = {band.high - band.low, 0};
    call.shift = band.high - corner;
  }
  return call;
}

}  // namespace

std::vector<Range> rows_of(const Whole& whole, int32_t rank) {
  const int64_t world = whole.world, n = whole.seqlen, r = rank;
  // Parts differ by a row where the numbers do not divide.
  const auto bound = [&](int64_t i, int64_t parts) {
    return n / parts * i + n % parts * i / parts;
  };
  std::vector<Range> found;
  const auto add = [&](int64_t i, int64_t parts) {
    const Range rows = {bound(i, parts), bound(i + 1, parts)};
    if (rows.count() == 0) return;
    if (!found.empty() && found.back().end == rows.begin) {
      found.back().end = rows.end;
    } else {
      found.push_back(rows);
    }
  };
  if (whole.layout == FA3_RING_CONTIGUOUS) {
    add(r, world);
  } else {
    add(r, 2 * world);
    add(2 * world - 1 - r, 2 * world);
  }
  return found;
}

int64_t num_rows(const Whole& whole, int32_t rank) {
  int64_t rows = 0;
  for (const Range& range : rows_of(whole, rank)) rows += range.count();
  return rows;
}

Stage stage_of(const Whole& whole, int32_t rank, int32_t source) {
  std::vector<Rectangle> found = cover(grid_of(whole, rank, source));
  for (Rectangle& one : found) one = one.trimmed();
  Stage stage;
  if (rank == source) {
    stage.keys = {{0, num_rows(whole, rank)}};
  } else {
    for (const Rectangle& one : found) stage.keys.push_back(one.keys);
    std::ranges::sort(stage.keys, {}, &Range::begin);
    std::vector<Range> merged;
    for (const Range& keys : stage.keys) {
      if (!merged.empty() && keys.begin <= merged.back().end) {
        merged.back().end = std::max(merged.back().end, keys.end);
      } else {
        merged.push_back(keys);
      }
    }
    stage.keys = merged;
  }
  for (const Rectangle& one : found) {
    int64_t place = 0;
    for (const Range& keys : stage.keys) {
      if (one.keys.begin < keys.end) {
        place += one.keys.begin - keys.begin;
        break;
      }
      place += keys.count();
    }
    const int64_t by = place - one.keys.begin;
    stage.calls.push_back(
        call_of({one.rows, {place, one.keys.end + by}, {one.band.low + by, one.band.high + by}}));
  }
  for (const Range& keys : stage.keys) stage.num_keys += keys.count();
  return stage;
}

Range Stage::rows_of_source(const Call& call) const {
  int64_t place = 0;
  for (const Range& range : keys) {
    if (call.keys.begin < place + range.count()) {
      const int64_t by = range.begin - place;
      return {call.keys.begin + by, call.keys.end + by};
    }
    place += range.count();
  }
  return {};
}

bool sees(const Whole& whole, int32_t rank, int32_t source) {
  return !sees_nothing(grid_of(whole, rank, source));
}

int32_t farthest_reader(const Whole& whole, int32_t source) {
  for (int32_t by = whole.world - 1; by > 0; --by) {
    if (sees(whole, (source + by) % whole.world, source)) return by;
  }
  return 0;
}

}  // namespace fa3::ring
