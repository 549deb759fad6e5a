// SPDX-License-Identifier: Apache-2.0
// Rows of the catalogue for tests: one by its name, or all that a test is about.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "engine/hopper/kernels/backward.h"
#include "engine/hopper/kernels/forward.h"
#include "engine/hopper/kernels/kernel_name.h"

namespace fa3::hopper {

// A name of no built row does not compile in a constant, and ends the test elsewhere.
constexpr const Row& row_named(std::string_view name) {
  for (const Row& row : kForward) {
    if (row.built && name_of(row.kernel).view() == name) return row;
  }
  throw "no such row";
}

template <class Has>
std::vector<Row> rows_with(const Has& has) {
  std::vector<Row> rows;
  for (const Row& row : kForward) {
    if (has(row)) rows.push_back(row);
  }
  return rows;
}

// Kernels of ordinary calls: 16-bit operands, every weight, and sums that start at zero.
constexpr bool is_plain(const Row& row) {
  const Kernel& c = row.kernel;
  return row.built && !c.e4m3() && !c.dequantizes() && !c.block_mask() && !c.dropout() &&
         !c.continued() && !c.is_decode();
}

// The backward's rows that kHas(row) holds for.
template <auto kHas>
constexpr auto backward_rows() {
  std::array<BackwardRow, size_t(std::ranges::count_if(kBackward, kHas))> rows;
  std::ranges::copy_if(kBackward, rows.begin(), kHas);
  return rows;
}
constexpr bool is_for_all_calls(const BackwardRow& row) {
  const BackwardConfig& c = row.kernel;
  return !c.dropout() && !c.wide() && !c.block_mask() && !is_for_some_dense_calls(c);
}
// Tiles, as their dense kernels have them: of ordinary calls, and over lists.
inline constexpr auto kBackwardTiles = backward_rows<[](const BackwardRow& row) {
  return is_for_all_calls(row) && row.kernel.tiles == Tiles::kDense;
}>();
inline constexpr auto kListedBackwardTiles = backward_rows<[](const BackwardRow& row) {
  return row.kernel.tiles == Tiles::kListed && !row.kernel.capped();
}>();
inline constexpr auto kRowsForSomeDenseCalls =
    backward_rows<[](const BackwardRow& row) { return is_for_some_dense_calls(row.kernel); }>();

constexpr const BackwardConfig& backward_kernel_named(std::string_view name) {
  for (const BackwardRow& row : kBackward) {
    if (row.built && name_of(row.kernel).view() == name) return row.kernel;
  }
  throw "no such row";
}

}  // namespace fa3::hopper
