// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/backward/backward_entry.h"

#include <utility>

namespace fa3::hopper {
namespace {

template <Element E, int... Rows>
BackwardKernel find(int row, std::integer_sequence<int, Rows...>) {
  constexpr BackwardKernel (*kEntries[])() = {&backward_entry<Rows, E>...};
  return kEntries[row]();
}

}  // namespace

BackwardKernel backward_kernel_at(int row, Element element) {
  constexpr std::make_integer_sequence<int, int(kBackwardTable.size())> kRows;
  return element == Element::kFp16 ? find<Element::kFp16>(row, kRows)
                                   : find<Element::kBf16>(row, kRows);
}

}  // namespace fa3::hopper
