// SPDX-License-Identifier: Apache-2.0
// What an engine's catalogue, arrays of rows with a kernel each, is made and read with: arrays
// joined, and the entry of a row's kernel. Host only.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "engine/cuda/ptx/fragment.h"

namespace fa3::cuda {

// Arrays of rows, one behind the other.
template <class Row, std::size_t First, std::size_t... N>
constexpr auto join(const std::array<Row, First>& first, const std::array<Row, N>&... parts) {
  std::array<Row, (First + ... + N)> all;
  auto end = all.begin();
  const auto append = [&](const auto& part) {
    for (const Row& row : part) *end++ = row;
  };
  append(first);
  (append(parts), ...);
  return all;
}

// entry.operator()<Row>() of each row that is built; null for one that is compiled at run time.
template <const auto& kRows, class EntryOf>
constexpr auto entries_of(const EntryOf& entry) {
  using Entry = decltype(entry.template operator()<0>());
  const auto entry_if_built = [&]<size_t Row>() -> Entry {
    if constexpr (kRows[Row].built) return entry.template operator()<int(Row)>();
    return nullptr;
  };
  return [&]<size_t... Row>(std::index_sequence<Row...>) {
    return std::array{entry_if_built.template operator()<Row>()...};
  }
  (std::make_index_sequence<kRows.size()>());
}

// The entry of a row, which the engine's forward_entry.h or backward_entry.h has by element.
template <class Row>
auto entry_of(const Row& row, Element element) {
  return element == Element::kFp16 ? entry_of<Element::kFp16>(row) : entry_of<Element::kBf16>(row);
}

}  // namespace fa3::cuda
