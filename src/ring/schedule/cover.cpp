// SPDX-License-Identifier: Apache-2.0
#include "ring/schedule/cover.h"

#include <iterator>
#include <optional>

namespace fa3::ring {
namespace {

using Grid = std::vector<std::vector<Rectangle>>;  // of neighbouring cells: [rows][keys]
using Pieces = std::vector<Piece>::const_iterator;

// The pieces of the document that `from` is one of end there.
Pieces end_of_document(Pieces from, Pieces end) {
  return std::find_if(from, end, [&](const Piece& of) { return of.document != from->document; });
}

// The mask between some rows and some keys of a document.
Grid grid_of(const Mask& mask, Pieces rows, Pieces rows_end, Pieces keys, Pieces keys_end) {
  Grid grid;
  for (; rows != rows_end; ++rows) {
    std::vector<Rectangle>& line = grid.emplace_back();
    for (Pieces of = keys; of != keys_end; ++of) {
      // Positions are indices plus these.
      const int64_t moved = (of->positions.begin - of->row) - (rows->positions.begin - rows->row);
      const Band band = {mask.left == kUnbounded ? -kFar : -mask.left - moved,
                         mask.right == kUnbounded ? kFar : mask.right - moved};
      line.push_back({{rows->row, rows->row + rows->positions.count()},
                      {of->row, of->row + of->positions.count()},
                      band,
                      {rows->document, rows->positions.begin, of->positions.begin}});
    }
  }
  return grid;
}

// Calls visit(grid) for each document of which there are rows and keys, until it returns false.
template <class Visit>
void for_each_document(const std::vector<Piece>& rows, const std::vector<Piece>& keys,
                       const Mask& mask, const Visit& visit) {
  Pieces row = rows.begin(), key = keys.begin();
  while (row != rows.end() && key != keys.end()) {
    const Pieces row_end = end_of_document(row, rows.end());
    const Pieces key_end = end_of_document(key, keys.end());
    if (row->document == key->document && !visit(grid_of(mask, row, row_end, key, key_end))) {
      return;
    }
    const int64_t document = std::min(row->document, key->document);
    if (row->document == document) row = row_end;
    if (key->document == document) key = key_end;
  }
}

bool sees_nothing(const Grid& grid) {
  return std::ranges::all_of(grid, [](const auto& cells) {
    return std::ranges::all_of(cells, [](const Rectangle& c) { return c.normal() == kNothing; });
  });
}

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
  Rectangle whole = {
      {first.rows.begin, last.rows.end}, {first.keys.begin, last.keys.end}, {}, first.origin};
  for (const auto& line : grid) {
    for (const Rectangle& of : line) {
      for (const Band& band : {of.normal(), of.band}) {
        const bool fits = std::ranges::all_of(grid, [&](const auto& cells) {
          return std::ranges::all_of(cells, [&](const Rectangle& cell) {
            return Rectangle{cell.rows, cell.keys, band, {}}.normal() == cell.normal();
          });
        });
        whole.band = band;
        if (fits) return whole;
      }
    }
  }
  return std::nullopt;
}

std::vector<Rectangle> fewest(const Grid& grid) {
  if (grid.empty() || grid.front().empty() || sees_nothing(grid)) return {};
  if (const auto one = joined(grid)) return {*one};
  const size_t rows = grid.size(), columns = grid.front().size();
  std::vector<Rectangle> best;
  const auto consider = [&](const Grid& a, const Grid& b) {
    std::vector<Rectangle> found = fewest(a);
    const std::vector<Rectangle> rest = fewest(b);
    found.insert(found.end(), rest.begin(), rest.end());
    if (best.empty() || found.size() < best.size()) best = found;
  };
  if (rows > 1) consider(part(grid, 0, 1, 0, columns), part(grid, 1, rows, 0, columns));
  if (columns > 1) consider(part(grid, 0, rows, 0, 1), part(grid, 0, rows, 1, columns));
  return best;
}

// The cells that see anything.
std::vector<Rectangle> seen_cells(const Grid& grid) {
  std::vector<Rectangle> found;
  for (const auto& line : grid) {
    std::ranges::copy_if(line, std::back_inserter(found),
                         [](const Rectangle& cell) { return cell.normal() != kNothing; });
  }
  return found;
}

Call call_of(const Rectangle& of, const Band& band) {
  const int64_t corner = of.keys.end - of.rows.end;  // key - query on the diagonal of the call
  Call call = {.rows = of.rows, .keys = of.keys, .origin = of.origin};
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

// One more sequence of the call, whose lengths end at these rows and keys.
void end_sequence(Call* call, int64_t row, int64_t key) {
  const auto rows = static_cast<int32_t>(row - call->rows.begin);
  const auto keys = static_cast<int32_t>(key - call->keys.begin);
  if (rows == call->cu_rows.back() && keys == call->cu_keys.back()) return;
  call->cu_rows.push_back(rows);
  call->cu_keys.push_back(keys);
}

// The call goes on with the rows and keys of another one, which lie behind its own.
void append(Call* call, const Call& next) {
  if (call->cu_rows.empty()) {
    call->cu_rows = call->cu_keys = {0};
    end_sequence(call, call->rows.end, call->keys.end);
  }
  end_sequence(call, next.rows.begin, call->keys.end);
  end_sequence(call, next.rows.begin, next.keys.begin);
  end_sequence(call, next.rows.end, next.keys.end);
  call->rows.end = next.rows.end;
  call->keys.end = next.keys.end;
}

}  // namespace

bool Call::has_one_key() const {
  if (cu_keys.empty()) return keys.count() == 1;
  for (size_t i = 1; i < cu_keys.size(); ++i) {
    if (cu_keys[i] - cu_keys[i - 1] == 1) return true;
  }
  return false;
}

std::vector<Rectangle> rectangles_of(const std::vector<Piece>& rows, const std::vector<Piece>& keys,
                                     const Mask& mask, int64_t step) {
  std::vector<Rectangle> found;
  for_each_document(rows, keys, mask, [&](const Grid& grid) {
    for (const Rectangle& one : step != 0 ? seen_cells(grid) : fewest(grid)) {
      found.push_back(one.trimmed(std::max<int64_t>(step, 1)));
    }
    return true;
  });
  return found;
}

bool sees(const std::vector<Piece>& rows, const std::vector<Piece>& keys, const Mask& mask) {
  bool any = false;
  for_each_document(rows, keys, mask, [&](const Grid& grid) {
    any = !sees_nothing(grid);
    return !any;
  });
  return any;
}

std::vector<Call> calls_of(const std::vector<Rectangle>& found, Join join) {
  std::vector<Call> calls;
  for (const Rectangle& one : found) {
    const bool is_whole = join == Join::kWhole;
    const Call next = call_of(one, is_whole ? one.band : one.normal());
    const auto before = std::ranges::find_if(calls, [&](const Call& call) {
      if (is_whole || join == Join::kApart) return is_whole;
      const bool follows = join == Join::kTouching ? call.rows.end == next.rows.begin
                                                   : call.rows.end <= next.rows.begin;
      return follows && call.window == next.window && call.shift == next.shift &&
             call.keys.end <= next.keys.begin;
    });
    if (before == calls.end()) {
      calls.push_back(next);
    } else {
      append(&*before, next);
    }
  }
  return calls;
}

}  // namespace fa3::ring
