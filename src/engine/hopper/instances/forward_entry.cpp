// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/instances/forward_entry.h"

#include <utility>

#include "engine/hopper/instances/cache_table.h"
#include "engine/hopper/instances/decode_table.h"
#include "engine/hopper/instances/e4m3_table.h"
#include "engine/hopper/instances/stream_k_table.h"

namespace fa3::hopper {
namespace {

template <Element E, int... Rows>
ForwardKernel find(int row, Variant variant, std::integer_sequence<int, Rows...>) {
  constexpr ForwardKernel (*kEntries[][kNumVariants])() = {
      {&forward_entry<Rows, E, Variant::kDense>, &forward_entry<Rows, E, Variant::kGeneral>,
       &forward_entry<Rows, E, Variant::kCapped>}...};
  return kEntries[row][int(variant)]();
}

template <Element E, int... Rows>
ForwardKernel find_cache(int row, bool capped, std::integer_sequence<int, Rows...>) {
  constexpr ForwardKernel (*kEntries[][2])() = {
      {&cache_entry<Rows, E, Variant::kGeneral>, &cache_entry<Rows, E, Variant::kCapped>}...};
  return kEntries[row][capped]();
}

template <Element E, int... Rows>
ForwardKernel find_stream_k(int row, std::integer_sequence<int, Rows...>) {
  constexpr ForwardKernel (*kEntries[])() = {&stream_k_entry<Rows, E>...};
  return kEntries[row]();
}

template <Element E, int... Rows>
ForwardKernel find_decode(int row, bool is_single_sequence, std::integer_sequence<int, Rows...>) {
  constexpr ForwardKernel (*kEntries[][2])() = {
      {&decode_entry<Rows, E, Variant::kDecode>,
       &decode_entry<Rows, E, Variant::kDecodeSingle>}...};
  return kEntries[row][is_single_sequence]();
}

template <Element E, int... Rows>
ForwardKernel find_e4m3(int row, std::integer_sequence<int, Rows...>) {
  constexpr ForwardKernel (*kEntries[])() = {&e4m3_entry<Rows, E>...};
  return kEntries[row]();
}

}  // namespace

ForwardKernel forward_kernel_at(int row, Element element, Variant variant) {
  constexpr std::make_integer_sequence<int, int(kForwardTable.size())> kRows;
  return element == Element::kFp16 ? find<Element::kFp16>(row, variant, kRows)
                                   : find<Element::kBf16>(row, variant, kRows);
}

ForwardKernel cache_kernel_at(int row, Element element, Variant variant) {
  constexpr std::make_integer_sequence<int, int(kCacheTable.size())> kRows;
  const bool capped = variant == Variant::kCapped;
  return element == Element::kFp16 ? find_cache<Element::kFp16>(row, capped, kRows)
                                   : find_cache<Element::kBf16>(row, capped, kRows);
}

ForwardKernel stream_k_kernel_at(int row, Element element) {
  constexpr std::make_integer_sequence<int, int(kStreamKTable.size())> kRows;
  return element == Element::kFp16 ? find_stream_k<Element::kFp16>(row, kRows)
                                   : find_stream_k<Element::kBf16>(row, kRows);
}

ForwardKernel decode_kernel_at(int row, Element element, Variant variant) {
  const bool is_single_sequence = variant == Variant::kDecodeSingle;
  constexpr std::make_integer_sequence<int, int(kDecodeTable.size())> kRows;
  return element == Element::kFp16 ? find_decode<Element::kFp16>(row, is_single_sequence, kRows)
                                   : find_decode<Element::kBf16>(row, is_single_sequence, kRows);
}

ForwardKernel e4m3_kernel_at(int row, Element output) {
  constexpr std::make_integer_sequence<int, int(kE4m3Table.size())> kRows;
  return output == Element::kFp16 ? find_e4m3<Element::kFp16>(row, kRows)
                                  : find_e4m3<Element::kBf16>(row, kRows);
}

}  // namespace fa3::hopper
