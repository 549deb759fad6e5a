// SPDX-License-Identifier: Apache-2.0
// The kernel of a table's row, element type and variant that are known at run time only.
#pragma once

#include <algorithm>
#include <array>
#include <utility>

#include "engine/hopper/instances/forward_entry.h"
#include "engine/hopper/tables/cache_table.h"
#include "engine/hopper/tables/continued_table.h"
#include "engine/hopper/tables/decode_table.h"
#include "engine/hopper/tables/dropout_table.h"
#include "engine/hopper/tables/e4m3_table.h"
#include "engine/hopper/tables/mask_table.h"
#include "engine/hopper/tables/stream_k_table.h"

namespace fa3::hopper {

// A table of entries: how many rows, the variants that each row is built in, and the kernels.
struct ForwardEntries {
  static constexpr int kRows = int(kForwardTable.size());
  static constexpr std::array kVariants{Variant::kDense, Variant::kGeneral, Variant::kCapped};
  template <int Row, Element E, Variant V>
  static ForwardKernel entry() {
    return forward_entry<Row, E, V>();
  }
};

struct CacheEntries {
  static constexpr int kRows = int(kCacheTable.size());
  static constexpr std::array kVariants{Variant::kGeneral, Variant::kCapped};
  template <int Row, Element E, Variant V>
  static ForwardKernel entry() {
    return cache_entry<Row, E, V>();
  }
};

struct DecodeEntries {
  static constexpr int kRows = int(kDecodeTable.size());
  static constexpr std::array kVariants{Variant::kDecode, Variant::kDecodeSingle};
  template <int Row, Element E, Variant V>
  static ForwardKernel entry() {
    return decode_entry<Row, E, V>();
  }
};

struct StreamKEntries {
  static constexpr int kRows = int(kStreamKTable.size());
  static constexpr std::array kVariants{Variant::kStreamK};
  template <int Row, Element E, Variant>
  static ForwardKernel entry() {
    return stream_k_entry<Row, E>();
  }
};

// Each row has a variant of its own, of these, those with dropout and continued ones.
struct E4m3Entries {
  static constexpr int kRows = int(kE4m3Table.size());
  static constexpr std::array kVariants{Variant::kDense};
  template <int Row, Element E, Variant>
  static ForwardKernel entry() {
    return e4m3_entry<Row, E>();
  }
};

struct DropoutEntries {
  static constexpr int kRows = int(kDropoutTable.size());
  static constexpr std::array kVariants{Variant::kDense};
  template <int Row, Element E, Variant>
  static ForwardKernel entry() {
    return dropout_entry<Row, E>();
  }
};

struct MaskEntries {
  static constexpr int kRows = int(kMaskTable.size());
  static constexpr std::array kVariants{Variant::kDense, Variant::kGeneral};
  template <int Row, Element E, Variant V>
  static ForwardKernel entry() {
    return mask_entry<Row, E, V>();
  }
};

struct ContinuedEntries {
  static constexpr int kRows = int(kContinuedTable.size());
  static constexpr std::array kVariants{Variant::kDense};
  template <int Row, Element E, Variant>
  static ForwardKernel entry() {
    return continued_entry<Row, E>();
  }
};

template <class Table>
using EntriesOfRow = std::array<ForwardKernel (*)(), Table::kVariants.size()>;

template <class Table, int Row, Element E, size_t... I>
constexpr EntriesOfRow<Table> entries_of_row(std::index_sequence<I...>) {
  return {&Table::template entry<Row, E, Table::kVariants[I]>...};
}

template <class Table, Element E, int... Rows>
constexpr auto entries_of(std::integer_sequence<int, Rows...>) {
  constexpr std::make_index_sequence<Table::kVariants.size()> kAll;
  return std::array<EntriesOfRow<Table>, sizeof...(Rows)>{entries_of_row<Table, Rows, E>(kAll)...};
}

// No function where the table lacks the variant.
template <class Table, Element E>
ForwardKernel kernel_at(int row, Variant variant) {
  static constexpr auto kEntries =
      entries_of<Table, E>(std::make_integer_sequence<int, Table::kRows>());
  const auto found = std::ranges::find(Table::kVariants, variant);
  if (found == Table::kVariants.end()) return {};
  return kEntries[size_t(row)][size_t(found - Table::kVariants.begin())]();
}

template <class Table>
ForwardKernel kernel_at(int row, Element element, Variant variant) {
  return element == Element::kFp16 ? kernel_at<Table, Element::kFp16>(row, variant)
                                   : kernel_at<Table, Element::kBf16>(row, variant);
}

}  // namespace fa3::hopper
