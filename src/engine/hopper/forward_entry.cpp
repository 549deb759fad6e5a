// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/forward_entry.h"

#include <utility>

namespace fa3::hopper {
namespace {

template <Element E, int... Rows>
ForwardKernel find(int row, Variant variant, std::integer_sequence<int, Rows...>) {
  constexpr ForwardKernel (*kEntries[][kNumVariants])() = {
      {&forward_entry<Rows, E, Variant::kDense>, &forward_entry<Rows, E, Variant::kGeneral>,
       &forward_entry<Rows, E, Variant::kCapped>}...};
  return kEntries[row][int(variant)]();
}

}  // namespace

ForwardKernel forward_kernel_at(int row, Element element, Variant variant) {
  constexpr std::make_integer_sequence<int, int(kForwardTable.size())> kRows;
  return element == Element::kFp16 ? find<Element::kFp16>(row, variant, kRows)
                                   : find<Element::kBf16>(row, variant, kRows);
}

}  // namespace fa3::hopper
