// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/instances/backward_entry.h"

#include <utility>

namespace fa3::hopper {
namespace {

template <Element E, int... Rows>
BackwardKernel find(int row, Variant variant, std::integer_sequence<int, Rows...>) {
  constexpr BackwardKernel (*kEntries[][kNumVariants])() = {
      {&backward_entry<Rows, E, Variant::kDense>, &backward_entry<Rows, E, Variant::kGeneral>,
       &backward_entry<Rows, E, Variant::kCapped>}...};
  return kEntries[row][int(variant)]();
}

}  // namespace

BackwardKernel backward_kernel_at(int row, Element element, Variant variant) {
  constexpr std::make_integer_sequence<int, int(kBackwardTable.size())> kRows;
  return element == Element::kFp16 ? find<Element::kFp16>(row, variant, kRows)
                                   : find<Element::kBf16>(row, variant, kRows);
}

}  // namespace fa3::hopper
