// SPDX-License-Identifier: Apache-2.0
// The table of kernels that are built again for a check, in place of the library's: those in bf16,
// since what is checked knows no element type.
#include <cstdlib>
#include <utility>

#include "engine/hopper/instances/cache_table.h"
#include "engine/hopper/instances/decode_table.h"
#include "engine/hopper/instances/e4m3_table.h"
#include "engine/hopper/instances/forward_entry.h"
#include "engine/hopper/instances/stream_k_table.h"

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

template <int... Rows>
ForwardKernel find_cache(int row, bool capped, std::integer_sequence<int, Rows...>) {
  constexpr Element kBf16 = Element::kBf16;
  constexpr ForwardKernel (*kEntries[][2])() = {{&cache_entry<Rows, kBf16, Variant::kGeneral>,
                                                 &cache_entry<Rows, kBf16, Variant::kCapped>}...};
  return kEntries[row][capped]();
}

template <int... Rows>
ForwardKernel find_stream_k(int row, std::integer_sequence<int, Rows...>) {
  constexpr ForwardKernel (*kEntries[])() = {&stream_k_entry<Rows, Element::kBf16>...};
  return kEntries[row]();
}

template <int... Rows>
ForwardKernel find_decode(int row, bool is_single_sequence, std::integer_sequence<int, Rows...>) {
  constexpr ForwardKernel (*kEntries[][2])() = {
      {&decode_entry<Rows, Element::kBf16, Variant::kDecode>,
       &decode_entry<Rows, Element::kBf16, Variant::kDecodeSingle>}...};
  return kEntries[row][is_single_sequence]();
}

template <int... Rows>
ForwardKernel find_e4m3(int row, std::integer_sequence<int, Rows...>) {
  constexpr ForwardKernel (*kEntries[])() = {&e4m3_entry<Rows, Element::kBf16>...};
  return kEntries[row]();
}

}  // namespace

ForwardKernel forward_kernel_at(int row, Element element, Variant variant) {
  if (element != Element::kBf16) std::abort();
  return find(row, variant, std::make_integer_sequence<int, int(kForwardTable.size())>());
}

ForwardKernel cache_kernel_at(int row, Element element, Variant variant) {
  if (element != Element::kBf16) std::abort();
  return find_cache(row, variant == Variant::kCapped,
                    std::make_integer_sequence<int, int(kCacheTable.size())>());
}

ForwardKernel stream_k_kernel_at(int row, Element element) {
  if (element != Element::kBf16) std::abort();
  return find_stream_k(row, std::make_integer_sequence<int, int(kStreamKTable.size())>());
}

ForwardKernel decode_kernel_at(int row, Element element, Variant variant) {
  const bool is_single_sequence = variant == Variant::kDecodeSingle;
  if (element != Element::kBf16) std::abort();
  return find_decode(row, is_single_sequence,
                     std::make_integer_sequence<int, int(kDecodeTable.size())>());
}

ForwardKernel e4m3_kernel_at(int row, Element output) {
  if (output != Element::kBf16) std::abort();
  return find_e4m3(row, std::make_integer_sequence<int, int(kE4m3Table.size())>());
}

}  // namespace fa3::hopper
