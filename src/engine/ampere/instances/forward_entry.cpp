// SPDX-License-Identifier: Apache-2.0
#include "engine/ampere/instances/forward_entry.h"

#include <utility>

namespace fa3::ampere {
namespace {

template <Element E, int... Rows>
ForwardKernel kernel_at(int row, std::integer_sequence<int, Rows...>) {
  static constexpr ForwardKernel (*kEntries[])() = {&forward_entry<Rows, E>...};
  return kEntries[row]();
}

}  // namespace

ForwardKernel forward_kernel_at(int row, Element element) {
  constexpr std::make_integer_sequence<int, int(kForwardTable.size())> kRows;
  return element == Element::kFp16 ? kernel_at<Element::kFp16>(row, kRows)
                                   : kernel_at<Element::kBf16>(row, kRows);
}

}  // namespace fa3::ampere
