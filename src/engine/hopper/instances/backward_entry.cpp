// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/instances/backward_entry.h"

#include <utility>

#include "engine/hopper/tables/dense_backward_table.h"
#include "engine/hopper/tables/dropout_backward_table.h"
#include "engine/hopper/tables/mask_backward_table.h"
#include "engine/hopper/tables/wide_backward_table.h"

namespace fa3::hopper {
namespace {

template <Element E, int... Rows>
BackwardKernel find(int row, Variant variant, std::integer_sequence<int, Rows...>) {
  constexpr BackwardKernel (*kEntries[][kNumVariants])() = {
      {&backward_entry<Rows, E, Variant::kDense>, &backward_entry<Rows, E, Variant::kGeneral>,
       &backward_entry<Rows, E, Variant::kCapped>}...};
  return kEntries[row][int(variant)]();
}

template <Element E, int... Rows>
BackwardKernel find_dropout(int row, std::integer_sequence<int, Rows...>) {
  constexpr BackwardKernel (*kEntries[])() = {&dropout_backward_entry<Rows, E>...};
  return kEntries[row]();
}

template <Element E, int... Rows>
BackwardKernel find_mask(int row, Variant variant, std::integer_sequence<int, Rows...>) {
  constexpr BackwardKernel (*kEntries[][2])() = {
      {&mask_backward_entry<Rows, E, Variant::kDense>,
       &mask_backward_entry<Rows, E, Variant::kGeneral>}...};
  return kEntries[row][int(variant)]();
}

template <Element E, int... Rows>
BackwardKernel find_wide(int row, std::integer_sequence<int, Rows...>) {
  constexpr BackwardKernel (*kEntries[])() = {&wide_backward_entry<Rows, E>...};
  return kEntries[row]();
}

template <Element E, int... Rows>
BackwardKernel find_dense(int row, std::integer_sequence<int, Rows...>) {
  constexpr BackwardKernel (*kEntries[])() = {&dense_backward_entry<Rows, E>...};
  return kEntries[row]();
}

// The row of kBackwardTable with the head dims of one of kDenseBackwardTable.
int row_for_all_calls(int dense_row) {
  const BackwardConfig& dense = kDenseBackwardTable[dense_row].config;
  int row = 0;
  while (kBackwardTable[row].config.head_dim != dense.head_dim ||
         kBackwardTable[row].config.head_dim_v != dense.head_dim_v) {
    ++row;
  }
  return row;
}

}  // namespace

BackwardKernel backward_kernel_at(int row, Element element, Variant variant) {
  constexpr std::make_integer_sequence<int, int(kBackwardTable.size())> kRows;
  return element == Element::kFp16 ? find<Element::kFp16>(row, variant, kRows)
                                   : find<Element::kBf16>(row, variant, kRows);
}

BackwardKernel dropout_backward_kernel_at(int row, Element element) {
  constexpr std::make_integer_sequence<int, int(kDropoutBackwardTable.size())> kRows;
  return element == Element::kFp16 ? find_dropout<Element::kFp16>(row, kRows)
                                   : find_dropout<Element::kBf16>(row, kRows);
}

BackwardKernel mask_backward_kernel_at(int row, Element element, Variant variant) {
  constexpr std::make_integer_sequence<int, int(kMaskBackwardTable.size())> kRows;
  return element == Element::kFp16 ? find_mask<Element::kFp16>(row, variant, kRows)
                                   : find_mask<Element::kBf16>(row, variant, kRows);
}

BackwardKernel wide_backward_kernel_at(int row, Element element) {
  constexpr std::make_integer_sequence<int, int(kWideBackwardTable.size())> kRows;
  return element == Element::kFp16 ? find_wide<Element::kFp16>(row, kRows)
                                   : find_wide<Element::kBf16>(row, kRows);
}

BackwardKernel dense_backward_kernel_at(int row, Element element) {
  constexpr std::make_integer_sequence<int, int(kDenseBackwardTable.size())> kRows;
  BackwardKernel kernel = element == Element::kFp16 ? find_dense<Element::kFp16>(row, kRows)
                                                    : find_dense<Element::kBf16>(row, kRows);
  kernel.splits = backward_kernel_at(row_for_all_calls(row), element, Variant::kDense).splits;
  return kernel;
}

}  // namespace fa3::hopper
