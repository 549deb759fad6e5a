// SPDX-License-Identifier: Apache-2.0
//
// Tests of every row of a table of kernels: typed ones, or a loop whose variable is a constant.
#pragma once

#include <gtest/gtest.h>

#include <utility>

namespace fa3::hopper {

template <size_t Row>
struct RowNumber {
  static constexpr size_t kRow = Row;
};

template <class Sequence>
struct RowNumbers;
template <size_t... Row>
struct RowNumbers<std::index_sequence<Row...>> {
  using Types = testing::Types<RowNumber<Row>...>;
};
template <const auto& Table>
using RowsOf = typename RowNumbers<std::make_index_sequence<Table.size()>>::Types;

// Calls check.operator()<C>() for the config of every row.
template <const auto& Table, class Check>
void for_rows_of(const Check& check) {
  const auto each = [&]<size_t... Row>(std::index_sequence<Row...>) {
    (check.template operator()<Table[Row].config>(), ...);
  };
  each(std::make_index_sequence<Table.size()>());
}

}  // namespace fa3::hopper
