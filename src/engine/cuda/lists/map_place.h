// SPDX-License-Identifier: Apache-2.0
// Which sequence's and head's blocks a row or a column of lists has. Lengths may hold anything:
// what is found here lies within the lists. Plain constexpr, tested on the host. Next:
// block_lists.cu.
#pragma once

#include "engine/cuda/lists/block_lists.h"

namespace fa3::cuda {

// A row of the map, and the lengths of its sequence. One of no queries sees nothing.
struct MapRow {
  int sequence = 0;
  int head = 0;
  int query_block = 0;
  int seqlen_q = 0;
  int seqlen_k = 0;

  FA3_HD constexpr bool exists() const {
    return query_block * kMaskBlock < seqlen_q && seqlen_k > 0;
  }
  FA3_HD constexpr RowCuts cuts(const MaskRuleOf<int>& rule) const {
    return exists() ? RowCuts::of(rule, query_block, seqlen_q, seqlen_k) : RowCuts{};
  }
};

FA3_HD constexpr MapRow row_at(const BlockListParams& p, int64_t row) {
  const int map = int(row / p.rows_of_map), number = int(row % p.rows_of_map);
  if (!p.varlen) {
    return {map / int(p.mask.heads), map % int(p.mask.heads), number, p.seqlen_q, p.seqlen_k};
  }
  if (number >= *p.row_tiles.count) return {};
  const SequenceTiles& s = p.row_tiles.entries[number];
  return {s.number, map, number - s.first_entry, s.queries.used, s.keys.count};
}

// A column, and its rows: those of `first` and of the query blocks behind it.
struct MapColumn {
  int key_block = 0;
  int num_rows = 0;
  int64_t first_row = 0;
  MapRow first{};

  FA3_HD constexpr MapRow row(int query_block) const {
    MapRow at = first;
    at.query_block = query_block;
    return at;
  }
};

// The list of query tiles has a sequence somewhere, or, where lengths add up to too many rows, not
// all of it.
FA3_HD constexpr MapColumn column_at(const BlockListParams& p, int64_t column) {
  const int map = int(column / p.columns_of_map), number = int(column % p.columns_of_map);
  const int64_t rows = int64_t{map} * p.rows_of_map;
  if (!p.varlen) {
    const int heads = int(p.mask.heads);
    return {number, p.query_blocks, rows, {map / heads, map % heads, 0, p.seqlen_q, p.seqlen_k}};
  }
  if (number >= *p.column_tiles.count) return {};
  const SequenceTiles& s = p.column_tiles.entries[number];  // whose queries are our keys
  const MapRow first{s.number, map, 0, s.keys.count, s.queries.used};
  const int key_block = number - s.first_entry;
  if (!first.exists() || key_block * kMaskBlock >= first.seqlen_k) return {key_block};
  const int at = p.first_rows[s.number], in_list = *p.row_tiles.count;
  if (at < 0 || at >= in_list) return {key_block};
  const SequenceTiles& found = p.row_tiles.entries[at];
  if (found.number != s.number || found.first_entry != at) return {key_block};
  const int blocks = (first.seqlen_q + kMaskBlock - 1) / kMaskBlock;
  return {key_block, blocks < in_list - at ? blocks : in_list - at, rows + at, first};
}

// The lists that are ranked together: those of a map, or of a sequence.
struct RankedTogether {
  int first = 0, count = 0;  // in the map
};
FA3_HD constexpr RankedTogether ranked_with(const UnrankedLists& lists, int number) {
  if (lists.tiles.entries == nullptr) return {0, lists.of_map};
  const int in_list = *lists.tiles.count;
  if (number >= in_list) return {number, 0};
  const SequenceTiles& s = lists.tiles.entries[number];
  const int left = in_list - s.first_entry, blocks = s.order.num_m_blocks;
  return {s.first_entry, blocks < left ? blocks : left};
}

}  // namespace fa3::cuda
