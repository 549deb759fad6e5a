// SPDX-License-Identifier: Apache-2.0
// The entries of all rows of the catalogue for an element, where a row that is known at run time
// finds its own.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "engine/cuda/ptx/fragment.h"

namespace fa3::hopper {

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

// The entry of a row of kForward (forward_entry.h) or kBackward (backward_entry.h).
template <class Row>
auto entry_of(const Row& row, cuda::Element element) {
  using cuda::Element;
  return element == Element::kFp16 ? entry_of<Element::kFp16>(row) : entry_of<Element::kBf16>(row);
}

}  // namespace fa3::hopper
