// SPDX-License-Identifier: Apache-2.0
#include "ring/schedule/cover.h"

#include <optional>

namespace fa3::ring {
namespace {

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

Call call_of(const Rectangle& of) {
  const Band band = of.normal();
  const int64_t corner = of.keys.end - of.rows.end;  // key - query on the diagonal of the call
  Call call = {.rows = of.rows, .keys = of.keys};
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

bool sees_nothing(const Grid& grid) {
  return std::ranges::all_of(grid, [](const auto& cells) {
    return std::ranges::all_of(cells, [](const Rectangle& c) { return c.normal() == kNothing; });
  });
}

std::vector<Rectangle> cover(const Grid& grid) {
  std::vector<Rectangle> found = fewest(grid);
  for (Rectangle& one : found) one = one.trimmed();
  return found;
}

std::vector<Call> calls_of(const std::vector<Rectangle>& found, bool joins) {
  std::vector<Call> calls;
  for (const Rectangle& one : found) {
    const Call next = call_of(one);
    const auto before = std::ranges::find_if(calls, [&](const Call& call) {
      return joins && call.window == next.window && call.shift == next.shift &&
             call.rows.end <= next.rows.begin && call.keys.end <= next.keys.begin;
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
