// SPDX-License-Identifier: Apache-2.0
// The table of the disturbed kernels, in place of the library's.
#include <cstdlib>
#include <utility>

#include "engine/hopper/forward_entry.h"

namespace fa3::hopper {
namespace {

template <int... Rows>
ForwardKernel find(int row, Variant variant, std::integer_sequence<int, Rows...>) {
  constexpr Element kBf16 = Element::kBf16;
  constexpr ForwardKernel (*kEntries[][kNumVariants])() = {
      {&forward_entry<Rows, kBf16, Variant::kDense>, &forward_entry<Rows, kBf16, Variant::kGeneral>,
       &forward_entry<Rows, kBf16, Variant::kCapped>}...};
  return kEntries[row][int(variant)]();
}

}  // namespace

ForwardKernel forward_kernel_at(int row, Element element, Variant variant) {
  if (element != Element::kBf16) std::abort();
  return find(row, variant, std::make_integer_sequence<int, int(kForwardTable.size())>());
}

}  // namespace fa3::hopper
