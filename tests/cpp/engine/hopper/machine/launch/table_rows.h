// SPDX-License-Identifier: Apache-2.0
//
// Tests of rows of the catalogue: typed ones, or a loop whose variable is a constant.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <utility>

#include "engine/hopper/kernels/forward.h"

namespace fa3::hopper {

template <size_t Row>
struct RowNumber {
  static constexpr size_t kRow = Row;
};

// The rows of kForward that kHas(row) holds for.
template <auto kHas>
constexpr auto row_numbers() {
  std::array<size_t, size_t(std::ranges::count_if(kForward, kHas))> numbers;
  size_t count = 0;
  for (size_t row = 0; row < kForward.size(); ++row) {
    if (kHas(kForward[row])) numbers[count++] = row;
  }
  return numbers;
}
template <auto kHas>
using RowsWith = decltype([]<size_t... I>(std::index_sequence<I...>) {
  return testing::Types<RowNumber<row_numbers<kHas>()[I]>...>{};
}(std::make_index_sequence<row_numbers<kHas>().size()>()));

// Calls check.operator()<C>() for the kernel of every row.
template <const auto& Table, class Check>
void for_rows_of(const Check& check) {
  const auto each = [&]<size_t... Row>(std::index_sequence<Row...>) {
    (check.template operator()<Table[Row].kernel>(), ...);
  };
  each(std::make_index_sequence<Table.size()>());
}

}  // namespace fa3::hopper
