// SPDX-License-Identifier: Apache-2.0
// The entries of all rows of kForward for an element, where a row that is known at run time finds
// its own.
#pragma once

#include <array>
#include <utility>

#include "engine/hopper/instances/forward_entry.h"

namespace fa3::hopper {

using ForwardEntry = ForwardKernel (*)();

// Null for a row that is compiled at run time.
template <Element E, int... Rows>
constexpr auto forward_entries(std::integer_sequence<int, Rows...>) {
  const auto entry = []<int Row>() -> ForwardEntry {
    if constexpr (kForward[Row].built) return &forward_entry<Row, E>;
    return nullptr;
  };
  return std::array{entry.template operator()<Rows>()...};
}

template <Element E>
ForwardEntry forward_entry_of(const Row& row) {
  static constexpr auto kEntries =
      forward_entries<E>(std::make_integer_sequence<int, int(kForward.size())>());
  return kEntries[size_t(&row - kForward.data())];
}

}  // namespace fa3::hopper
