// SPDX-License-Identifier: Apache-2.0
// Rows of tables, however many, are found by their number.
#include "engine/hopper/instances/kernel_at.h"

#include <gtest/gtest.h>

#include <span>

namespace fa3::hopper {
namespace {

// More rows than any table has.
struct LongTable {
  static constexpr int kRows = 40;
  static constexpr std::array kVariants{Variant::kGeneral, Variant::kDecodeSingle};
  template <int Row, Element E, Variant V>
  static ForwardKernel entry() {
    return {ForwardConfig{.block_m = Row}.with(E, V), nullptr, 0};
  }
};

TEST(KernelAt, every_row_element_and_variant_has_its_own_kernel) {
  for (int row = 0; row < LongTable::kRows; ++row) {
    for (const Element element : {Element::kFp16, Element::kBf16}) {
      for (const Variant variant : LongTable::kVariants) {
        const ForwardConfig c = kernel_at<LongTable>(row, element, variant).config;
        EXPECT_EQ(c.block_m, row);
        EXPECT_EQ(c.element, element) << row;
        EXPECT_EQ(c.variant, variant) << row;
      }
    }
  }
}

void expect_tile(const ForwardKernel& kernel, const KernelInstance& row, const char* table) {
  const ForwardConfig &c = kernel.config, &of_row = row.config;
  EXPECT_EQ(c.head_dim, of_row.head_dim) << table;
  EXPECT_EQ(c.head_dim_v, of_row.head_dim_v) << table;
  EXPECT_EQ(c.block_m, of_row.block_m) << table;
  EXPECT_EQ(c.block_n, of_row.block_n) << table;
  EXPECT_EQ(c.quantized_stages, of_row.quantized_stages) << table;
}

TEST(KernelAt, the_librarys_tables_have_the_kernels_of_their_rows) {
  const auto each = [](std::span<const KernelInstance> table, const char* name, auto kernel) {
    for (int row = 0; row < int(table.size()); ++row) {
      for (const Element element : {Element::kFp16, Element::kBf16}) {
        expect_tile(kernel(row, element), table[size_t(row)], name);
        EXPECT_EQ(kernel(row, element).config.element, element) << name;
      }
    }
  };
  for (const Variant variant : ForwardEntries::kVariants) {
    each(kForwardTable, "forward",
         [=](int row, Element element) { return forward_kernel_at(row, element, variant); });
  }
  for (const Variant variant : CacheEntries::kVariants) {
    each(kCacheTable, "cache",
         [=](int row, Element element) { return cache_kernel_at(row, element, variant); });
  }
  each(kDecodeTable, "decode", [](int row, Element element) {
    return decode_kernel_at(row, element, Variant::kDecodeSingle);
  });
  each(kStreamKTable, "stream-K", stream_k_kernel_at);
  each(kE4m3Table, "e4m3", e4m3_kernel_at);
}

}  // namespace
}  // namespace fa3::hopper
