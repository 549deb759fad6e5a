// SPDX-License-Identifier: Apache-2.0
// Which rows a CTA of a grid of row blocks has (RowGrid). Lengths are read here, on the device, and
// may hold anything. Plain constexpr, tested on the host.
#pragma once

#include "engine/ampere/backward_params.h"

namespace fa3::ampere {

// Sequences that are alike read no lengths: a CTA does nothing else meanwhile.
FA3_HD constexpr Rows rows_of(const Lengths& lengths, int sequence) {
  return lengths.alike() ? Rows{0, lengths.max, lengths.max} : lengths.clamped_rows_of(sequence);
}

struct RowBlock {
  int sequence;  // the last and one more: rows that no sequence owns
  int head;
  int block;
  // The sequence's rows: of which batch entry, the first in the tensor, how many, how many used.
  int batch;
  int begin;
  int owned;
  int used;

  static FA3_HD constexpr int num_sequences(const RowGrid& grid) {
    return grid.sequences + (grid.lengths.in_one_tensor ? 1 : 0);
  }

  // Blocks of a head are neighbours, heads of a sequence come one after the other.
  static FA3_HD constexpr RowBlock of(const RowGrid& grid, int number) {
    const int of_all_heads = number / grid.blocks;
    RowBlock b{.sequence = of_all_heads / grid.heads,
               .head = of_all_heads % grid.heads,
               .block = number % grid.blocks,
               .batch = 0,
               .begin = 0,
               .owned = 0,
               .used = 0};
    const bool exists = b.sequence < grid.sequences;
    const Rows rows =
        exists ? rows_of(grid.lengths, b.sequence) : grid.lengths.unowned_rows(grid.sequences);
    b.begin = int(rows.begin);
    b.owned = int(rows.owned);
    b.used = int(rows.used);
    if (exists && !grid.lengths.in_one_tensor) b.batch = b.sequence;
    return b;
  }

  // The block's offset in a tensor with other strides.
  FA3_HD constexpr int64_t offset(const Strides& strides, int row) const {
    return strides.offset(batch, head, begin + row);
  }
};

FA3_HD constexpr ScratchPlace scratch_place(const ScratchRows& rows, int sequence, int begin,
                                            int block_m) {
  return rows.packed ? ScratchPlace::of_packed(sequence, begin, block_m)
                     : ScratchPlace{sequence, 0};
}

}  // namespace fa3::ampere
