// SPDX-License-Identifier: Apache-2.0
// Query heads that read the same keys share a tile, as rows beside each other: row = query * heads +
// head in the pack. A pack of one head leaves rows and queries the same.
#pragma once

#include "core/macros.h"

namespace fa3::cuda {

struct HeadPack {
  int log2 = 0;  // 2^log2 heads

  FA3_HD constexpr int heads() const { return 1 << log2; }
  template <class Int>
  FA3_HD constexpr Int rows(Int queries) const {
    return queries << log2;
  }
  FA3_HD constexpr int query(int row) const { return row >> log2; }
  // The head of O, for a row of pack number `pack`.
  FA3_HD constexpr int head(int pack, int row) const {
    return (pack << log2) + (row & (heads() - 1));
  }
};

}  // namespace fa3::cuda
