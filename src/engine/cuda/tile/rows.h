// SPDX-License-Identifier: Apache-2.0
// Where the rows of a tile lie in global memory. The tile's rows count queries of one sequence,
// heads packed; a tensor is reached by batch, head and row.
#pragma once

#include <cstdint>

#include "engine/cuda/ptx/fragment.h"

namespace fa3::cuda {

// Query heads that read the same keys share a tile, as rows beside each other: row = query * heads
// + head in the pack. A pack of one head leaves rows and queries the same.
struct PackGqa {
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

// Distances between neighbours, in elements.
struct Strides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;

  FA3_HD constexpr int64_t offset(int batch_entry, int head_number, int row_number) const {
    return batch_entry * batch + head_number * head + row_number * row;
  }
};

// A (batch, row, head, column) tensor with unit stride along columns.
struct RowTensor {
  void* data = nullptr;
  Strides strides;
  int columns = 0;

  FA3_HD uint16_t* at(int batch, int head, int row) const {
    return static_cast<uint16_t*>(data) + strides.offset(batch, head, row);
  }
  template <Element E>
  FA3_HD Bits<E>* at(int batch, int head, int row) const {
    return static_cast<Bits<E>*>(data) + strides.offset(batch, head, row);
  }
};

// A tensor whose rows are copied to shared memory by `width` bytes at once: 16, 8, 4 or 2, which
// its address and all strides are multiples of.
struct CopiedRows {
  RowTensor tensor;
  int width;
  bool in_chunks;  // width is 16, rows end with one, and all of a tile are one stride apart
};

// The log-sum-exp: a float for each (batch, head, row).
struct RowFloats {
  float* data = nullptr;  // null: not wanted
  Strides strides;
};

// What a forward kernel writes. The pack tells how rows of a tile are rows of these.
struct ForwardOutput {
  RowTensor o;
  RowFloats lse;
  PackGqa pack;
  bool some_rows_see_no_key;
  bool o_is_float32 = false;    // of kernels that know of it; else O has the kernel's type
  bool o_is_aligned = true;     // likewise: rows begin at multiples of 16 bytes
  const float* sink = nullptr;  // one for each query head; null: none
};

// A result for the same rows over other keys, in float32, which a forward kernel goes on from.
struct PartialInput {
  RowTensor o;    // data null: none
  RowFloats lse;  // natural logarithms
  bool pairs;     // of o's columns are aligned to 8 bytes
};

// The weight of a row of a split: the sum of its P, relative to a reference in log2 units. A
// log-sum-exp would be one number, but beside a large reference it has no bits left for the sum.
struct alignas(8) PartialSum {
  float ref, sum;
};

// Where splits of tiles leave their results, in float32: O, normalised, and the sums of P. Each
// slot has the rows of a tile.
struct PartialOutput {
  float* o = nullptr;  // (slots, rows, columns)
  PartialSum* sums = nullptr;
  int rows = 0;
  int columns = 0;

  FA3_HD int64_t row(int slot, int tile_row) const { return int64_t{slot} * rows + tile_row; }
};

// The query rows of one sequence: where it starts in the tensors, and how many there are.
struct QueryRows {
  int batch;
  int pack;  // number of the head pack
  int begin;
  int count;
  int used;  // those from here on are written like rows that see no key, whatever they hold
};

// The two rows of a tile that a lane holds (fragment.h), as the tensors know them.
struct LaneRows {
  int head[kRowsPerThread];
  int row[kRowsPerThread];
  bool exists[kRowsPerThread];
  bool used[kRowsPerThread];

  // first_row: the warp's, in its sequence.
  FA3_HD LaneRows(PackGqa pack, const QueryRows& queries, int first_row, unsigned thread) {
    for (int r = 0; r < kRowsPerThread; ++r) {
      const int packed_row = first_row + int(thread % kWarpSize) / kQuadLanes + r * kRowDistance;
      head[r] = pack.head(queries.pack, packed_row);
      row[r] = queries.begin + pack.query(packed_row);
      exists[r] = pack.query(packed_row) < queries.count;
      used[r] = pack.query(packed_row) < queries.used;
    }
  }
};

}  // namespace fa3::cuda
