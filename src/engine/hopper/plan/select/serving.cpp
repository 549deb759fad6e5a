// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/plan/select/serving.h"

#include <algorithm>
#include <array>

#include "engine/hopper/kernels/offers.h"
#include "engine/hopper/plan/count_tiles.h"

namespace fa3::hopper {
namespace {

constexpr bool is_one_tile(const Row& a, const Row& b) {
  const Kernel &x = a.kernel, &y = b.kernel;
  return x.shape.head_dim == y.shape.head_dim && x.shape.head_dim_v == y.shape.head_dim_v &&
         x.shape.block_m == y.shape.block_m && x.shape.block_n == y.shape.block_n &&
         x.e4m3() == y.e4m3() && x.transposes_v() == y.transposes_v() &&
         x.dequantizes() == y.dequantizes() && x.continued() == y.continued() &&
         x.dropout() == y.dropout() && x.block_mask() == y.block_mask() && a.built == b.built &&
         a.score_kinds == b.score_kinds;
}

// Ends of tiles: rows behind which another tile begins.
constexpr bool ends_tile(size_t row) {
  return row + 1 == kForward.size() || !is_one_tile(kForward[row], kForward[row + 1]);
}

constexpr size_t kNumTiles = [] {
  size_t count = 0;
  for (size_t row = 0; row < kForward.size(); ++row) {
    count += !kForward[row].kernel.is_decode() && ends_tile(row);
  }
  return count;
}();

constexpr auto kTiles = [] {
  std::array<Tile, kNumTiles> tiles;
  size_t number = 0;
  const Row* begin = kForward.data();
  for (size_t row = 0; row < kForward.size(); ++row) {
    if (!ends_tile(row)) continue;
    const Row* const end = kForward.data() + row + 1;
    if (!begin->kernel.is_decode()) tiles[number++] = {begin, end};
    begin = end;
  }
  return tiles;
}();

struct Service {
  Needs offers, requires_;
};
constexpr auto kServices = [] {
  std::array<Service, kForward.size()> services;
  for (size_t row = 0; row < kForward.size(); ++row) {
    services[row] = {offers_of(kForward[row]), requires_of(kForward[row])};
  }
  return services;
}();

}  // namespace

const Row* Tile::stream_k() const {
  const Row* const found =
      std::find_if(begin, end, [](const Row& row) { return row.kernel.tiles == Tiles::kStreamK; });
  return found == end ? nullptr : found;
}

std::span<const Tile> tiles() {
  return kTiles;
}

bool offers(const Row& row, const Request& r, Needs needs) {
  const Service& service = kServices[size_t(&row - kForward.data())];
  return service.offers.covers(needs) && r.needs.covers(service.requires_) &&
         (row.only_for.empty() || !(row.only_for & r.needs).empty());
}

bool has_columns(const Kernel& c, const Request& r) {
  return c.shape.head_dim >= r.sizes.head_dim && c.shape.head_dim_v >= r.sizes.head_dim_v;
}

const Row* form_of(const Tile& tile, const Request& r, Needs more) {
  if (!has_columns(tile.kernel(), r)) return nullptr;
  for (const Row* row = tile.begin; row != tile.end; ++row) {
    if (row->kernel.tiles != Tiles::kStreamK && offers(*row, r, r.needs | more)) return row;
  }
  return nullptr;
}

bool is_served(const Request& r) {
  return bool(first_tile(r, [](const Tile&) { return true; }));
}

bool suits(const Tile& tile, const Request& r) {
  const auto& [least_keys, most_keys, most_rows, most_rows_of_key] = form_of(tile, r)->limits;
  const Kernel& c = tile.kernel();
  // A tile without overlap gains by another CTA on its SM: by more than one wave of tiles.
  const auto has_waves = [&] {
    return num_tiles(c, r.call, PackGqa{}) > int64_t{r.num_sms} * c.shape.ctas_per_sm;
  };
  return r.sizes.longest >= least_keys && r.sizes.keys <= most_keys && r.sizes.rows <= most_rows &&
         (most_rows_of_key == INT64_MAX || rows_of_key(r.call) <= most_rows_of_key) &&
         (c.shape.overlaps || has_waves());
}

Tile first_that_suits(const Request& r) {
  const Tile first = first_tile(r, [&](const Tile& tile) { return suits(tile, r); });
  return first ? first : first_tile(r, [](const Tile&) { return true; });
}

}  // namespace fa3::hopper
