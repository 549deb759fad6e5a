// SPDX-License-Identifier: Apache-2.0
//
// Where the keys and values of a sequence lie, if not in the entry of that number: in another entry
// of a cache, or in pages of one. Which of a sequence's rows count is seqlen.h's.
#pragma once

#include <cstdint>

#include "core/macros.h"

namespace fa3 {

struct KeyPlaces {
  const int32_t* batch_index = nullptr;  // (batch): the cache's entry, or the page table's
  const int32_t* page_table = nullptr;   // (entries, max_pages)
  int64_t table_stride = 0;              // from one entry of the table to the next
  int64_t page_size = 0;                 // rows; 0: no pages. Known also where arrays are null
  int64_t entries = 0;                   // of the page table, or of the cache if it has no pages
  int64_t pages = 0;                     // of the cache
  // A workspace query may leave the arrays null, so flags say it too:
  bool indexed = false;    // batch_index is in use
  bool elsewhere = false;  // any of this is, or left padding

  FA3_HD constexpr bool paged() const { return page_size > 0; }
  FA3_HD constexpr int64_t entry_of(int64_t b) const {
    return batch_index != nullptr ? batch_index[b] : b;
  }
  FA3_HD constexpr const int32_t* pages_of(int64_t b) const {
    return page_table + entry_of(b) * table_stride;
  }
  // For arrays that nobody has looked at.
  FA3_HD constexpr bool has_entry(int64_t entry) const { return entry >= 0 && entry < entries; }
  FA3_HD constexpr bool has_page(int64_t page) const { return page >= 0 && page < pages; }
};

}  // namespace fa3
