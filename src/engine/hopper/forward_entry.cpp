// SPDX-License-Identifier: Apache-2.0
#include "engine/hopper/forward_entry.h"

#include <utility>

#include "engine/hopper/compiled_cache.h"
#include "engine/hopper/compiled_decode.h"
#include "engine/hopper/compiled_e4m3.h"
#include "engine/hopper/stream/compiled_stream.h"

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
ForwardKernel find_decode(int row, std::integer_sequence<int, Rows...>) {
  constexpr ForwardKernel (*kEntries[])() = {&decode_entry<Rows, E>...};
  return kEntries[row]();
}

template <Element E, int... Rows>
ForwardKernel find_stream(int row, bool has_tiles, std::integer_sequence<int, Rows...>) {
  constexpr ForwardKernel (*kEntries[][2])() = {
      {&stream_entry<Rows, E, Variant::kStream>, &stream_entry<Rows, E, Variant::kStreamTile>}...};
  return kEntries[row][has_tiles]();
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

ForwardKernel decode_kernel_at(int row, Element element) {
  constexpr std::make_integer_sequence<int, int(kDecodeTable.size())> kRows;
  return element == Element::kFp16 ? find_decode<Element::kFp16>(row, kRows)
                                   : find_decode<Element::kBf16>(row, kRows);
}

ForwardKernel stream_kernel_at(int row, Element element, Variant variant) {
  const bool has_tiles = variant == Variant::kStreamTile;
  constexpr std::make_integer_sequence<int, int(kStreamTable.size())> kRows;
  return element == Element::kFp16 ? find_stream<Element::kFp16>(row, has_tiles, kRows)
                                   : find_stream<Element::kBf16>(row, has_tiles, kRows);
}

ForwardKernel e4m3_kernel_at(int row, Element output) {
  constexpr std::make_integer_sequence<int, int(kE4m3Table.size())> kRows;
  return output == Element::kFp16 ? find_e4m3<Element::kFp16>(row, kRows)
                                  : find_e4m3<Element::kBf16>(row, kRows);
}

}  // namespace fa3::hopper
