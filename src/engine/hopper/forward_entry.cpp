// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/forward_entry.h"

#include <utility>

namespace fa3::hopper {
namespace {

template <Element E, int... Rows>
ForwardKernel find(int row, std::integer_sequence<int, Rows...>) {
  constexpr ForwardKernel (*kEntries[])() = {&forward_entry<Rows, E>...};
  return kEntries[row]();
}

}  // namespace

ForwardKernel forward_kernel_at(int row, Element element) {
  constexpr std::make_integer_sequence<int, int(kForwardTable.size())> kRows;
  return element == Element::kFp16 ? find<Element::kFp16>(row, kRows)
                                   : find<Element::kBf16>(row, kRows);
}

}  // namespace fa3::hopper
