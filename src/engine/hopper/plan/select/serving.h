// SPDX-License-Identifier: Apache-2.0
// Which rows of the catalogue serve a call: their offers cover its needs, and their columns hold
// its heads. Next: select.h.
#pragma once

#include <span>

#include "core/error.h"
#include "engine/hopper/kernels/forward.h"
#include "engine/hopper/plan/request.h"

namespace fa3::hopper {

// A run of rows of one tile: the forms that its kernel comes in.
struct Tile {
  const Row* begin = nullptr;
  const Row* end = nullptr;

  explicit operator bool() const { return begin != nullptr; }
  const Row& last() const { return end[-1]; }
  // Columns, blocks and stages, as the form for all masks and lengths has them.
  const Kernel& kernel() const { return last().kernel; }
  const Row* stream_k() const;  // the form that only decodes; null: there is none
};

// Tiles in the order of the catalogue, without those of decode kernels.
std::span<const Tile> tiles();

// The first form of a tile that serves a call, or null. `more`: needs of a tiling.
const Row* form_of(const Tile& tile, const Request& r, Needs more = {});

// The first tile that serves a call and that suits(tile); none: no such tile.
template <class Suits>
Tile first_tile(const Request& r, const Suits& suits) {
  for (const Tile& tile : tiles()) {
    if (form_of(tile, r) != nullptr && suits(tile)) return tile;
  }
  return {};
}

// Whether a row that is for calls of this kind offers some needs. Its columns may be too few.
bool offers(const Row& row, const Request& r, Needs needs);
bool has_columns(const Kernel& kernel, const Request& r);

// Whether a kernel other than those that decode serves a call.
bool is_served(const Request& r);

// Whether a tile suits the sizes of a call that it serves.
bool suits(const Tile& tile, const Request& r);

// The first tile that serves a call and suits its sizes, else the first that serves it.
Tile first_that_suits(const Request& r);

// ---- Why no kernel serves a call, found by what the kernels offer ----

// OK if a kernel serves the call; if only decode kernels do, they may still not take it.
Status check_served(const Request& r);

// Refuses a call that decode kernels alone serve and do not take (select_decode()).
Status refuse_many_queries(const Request& r);

}  // namespace fa3::hopper
