// SPDX-License-Identifier: Apache-2.0
// The kernels of rows, which generated sources have (forward_entry.cuh, backward_entry.cuh).
#include <utility>

#include "engine/ampere/instances/backward_entry.h"
#include "engine/ampere/instances/forward_entry.h"

namespace fa3::ampere {
namespace {

template <Element E, int... Rows>
ForwardKernel kernel_at(int row, std::integer_sequence<int, Rows...>) {
  static constexpr ForwardKernel (*kEntries[])() = {&forward_entry<Rows, E>...};
  return kEntries[row]();
}

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

ForwardKernel forward_kernel_at(int row, Element element) {
  constexpr std::make_integer_sequence<int, int(kForwardTable.size())> kRows;
  return element == Element::kFp16 ? kernel_at<Element::kFp16>(row, kRows)
                                   : kernel_at<Element::kBf16>(row, kRows);
}

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
