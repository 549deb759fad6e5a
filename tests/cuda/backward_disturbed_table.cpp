// SPDX-License-Identifier: Apache-2.0
// The table of the disturbed backward kernels, in place of the library's.
#include <cstdlib>
#include <utility>

#include "engine/hopper/instances/backward_entry.h"
#include "engine/hopper/tables/dense_backward_table.h"
#include "engine/hopper/tables/dropout_backward_table.h"

namespace fa3::hopper {
namespace {

template <int... Rows>
BackwardKernel find(int row, Variant variant, std::integer_sequence<int, Rows...>) {
  constexpr Element kBf16 = Element::kBf16;
  constexpr BackwardKernel (*kEntries[][kNumVariants])() = {
      {&backward_entry<Rows, kBf16, Variant::kDense>,
       &backward_entry<Rows, kBf16, Variant::kGeneral>,
       &backward_entry<Rows, kBf16, Variant::kCapped>}...};
  return kEntries[row][int(variant)]();
}

template <int... Rows>
BackwardKernel find_dropout(int row, std::integer_sequence<int, Rows...>) {
  constexpr BackwardKernel (*kEntries[])() = {&dropout_backward_entry<Rows, Element::kBf16>...};
  return kEntries[row]();
}

template <int... Rows>
BackwardKernel find_pair(int row, std::integer_sequence<int, Rows...>) {
  constexpr BackwardKernel (*kEntries[])() = {&dense_backward_entry<Rows, Element::kBf16>...};
  return kEntries[row]();
}

}  // namespace

BackwardKernel dropout_backward_kernel_at(int row, Element element) {
  if (element != Element::kBf16) std::abort();
  constexpr std::make_integer_sequence<int, int(kDropoutBackwardTable.size())> kRows;
  return find_dropout(row, kRows);
}

BackwardKernel dense_backward_kernel_at(int row, Element element) {
  if (element != Element::kBf16) std::abort();
  constexpr std::make_integer_sequence<int, int(kDenseBackwardTable.size())> kRows;
  return find_pair(row, kRows);
}

// No check that runs these kernels has a block mask, or gradients in float32.
BackwardKernel mask_backward_kernel_at(int, Element, Variant) {
  std::abort();
}
BackwardKernel wide_backward_kernel_at(int, Element) {
  std::abort();
}

BackwardKernel backward_kernel_at(int row, Element element, Variant variant) {
  if (element != Element::kBf16) std::abort();
  return find(row, variant, std::make_integer_sequence<int, int(kBackwardTable.size())>());
}

}  // namespace fa3::hopper
