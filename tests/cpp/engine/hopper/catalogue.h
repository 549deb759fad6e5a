// SPDX-License-Identifier: Apache-2.0
// Rows of the catalogue for tests: one by its name, or all that a test is about.
#pragma once

#include <string_view>
#include <vector>

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

}  // namespace fa3::hopper
