// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/instances/backward_entry.h"

#include <utility>

namespace fa3::ampere {
namespace {

template <Element E, bool Scored, int... Rows>
BackwardKernel find(int row, std::integer_sequence<int, Rows...>) {
  constexpr BackwardKernel (*kEntries[])() = {&backward_entry<Rows, E, Scored>...};
  return kEntries[row]();
}

template <Element E>
BackwardKernel find(int row, bool scored) {
  constexpr std::make_integer_sequence<int, int(kBackwardTable.size())> kRows;
  return scored ? find<E, true>(row, kRows) : find<E, false>(row, kRows);
}

template <Element E, int... Rows>
BackwardKernel find_masked(int row, std::integer_sequence<int, Rows...>) {
  constexpr BackwardKernel (*kEntries[])() = {&mask_backward_entry<Rows, E>...};
  return kEntries[row]();
}

}  // namespace

BackwardKernel backward_kernel_at(int row, Element element, bool scored) {
  return element == Element::kFp16 ? find<Element::kFp16>(row, scored)
                                   : find<Element::kBf16>(row, scored);
}

BackwardKernel mask_backward_kernel_at(int row, Element element) {
  constexpr std::make_integer_sequence<int, int(kMaskBackwardTable.size())> kRows;
  return element == Element::kFp16 ? find_masked<Element::kFp16>(row, kRows)
                                   : find_masked<Element::kBf16>(row, kRows);
}

}  // namespace fa3::ampere
