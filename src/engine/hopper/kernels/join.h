// SPDX-License-Identifier: Apache-2.0
// Arrays of rows, one behind the other.
#pragma once

#include <array>
#include <cstddef>

namespace fa3::hopper {

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

}  // namespace fa3::hopper
