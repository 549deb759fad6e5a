// SPDX-License-Identifier: Apache-2.0
// Rows of a tensor become a tile in shared memory, copied by all threads of a CTA, or by those of
// its first warps: in chunks of 16 bytes by cp.async where the tensor is such, else in smaller
// pieces, down to an element. What lies behind a row's last column, and rows that do not exist, are
// zeros.
#pragma once

#include "engine/cuda/ptx/cp_async.cuh"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/smem.cuh"
#include "engine/cuda/tile/rows.h"
#include "engine/cuda/tile/tile_layout.h"

namespace fa3::ampere {

using namespace cuda;

// What a thread copies of each pass over a tile's rows: a chunk of a row of each slab.
template <TileLayout Layout, int Threads>
struct CopyShare {
  static constexpr int kLanes = Layout.row_bytes() / kChunkBytes;  // that copy a row of a slab
  static constexpr int kRows = Threads / kLanes;                   // of a pass
  static constexpr bool kWholePasses = Layout.rows % kRows == 0;
  static_assert(Threads % kLanes == 0 && (kRows % 8 == 0 || (kRows == 4 && kLanes == 8)));
  int row, column;
  uint32_t smem;

  __device__ __forceinline__ explicit CopyShare(uint32_t tile) {
    const int thread = int(thread_in_block());
    row = thread / kLanes;
    column = thread % kLanes * (kChunkBytes / 2);
    smem = tile + uint32_t(Layout.chunk_offset(row, column));
  }
  // Rows that are 8 apart have their chunks in the same order; if 4 apart, halves change places.
  __device__ __forceinline__ uint32_t at(int first_row, int slab) const {
    const uint32_t other_half = first_row % 8 == 0 ? 0 : kLanes / 2 * kChunkBytes;
    return (smem ^ other_half) +
           uint32_t(slab * Layout.slab_bytes() + first_row * Layout.row_bytes());
  }
  __device__ __forceinline__ bool has(int first_row) const {
    return kWholePasses || first_row + row < Layout.rows;
  }
};

// Rows one stride apart, in whole chunks of 16 bytes. `left`: rows that exist; `columns`: the
// tensor's.
template <TileLayout Layout, int Threads>
__device__ __forceinline__ void copy_chunks(uint32_t tile, const uint16_t* begin, int64_t stride,
                                            int left, int columns) {
  using Share = CopyShare<Layout, Threads>;
  const Share share(tile);
  const uint16_t* const own = begin + (share.row * stride + share.column);
#pragma unroll
  for (int first = 0; first < Layout.rows; first += Share::kRows) {
    if (!share.has(first)) break;
#pragma unroll
    for (int slab = 0; slab < Layout.slabs(); ++slab) {
      const int column = slab * Layout.slab_columns();
      cp_async_16(share.at(first, slab), own + (first * stride + column),
                  first + share.row < left && column + share.column < columns);
    }
  }
}

// A thread's copies of a tile all of whose chunks exist, to be made one by one.
template <TileLayout Layout, int Threads>
class WholeTile {
  using Share = CopyShare<Layout, Threads>;
  static_assert(Share::kWholePasses);

 public:
  static constexpr int kCopies = Layout.rows / Share::kRows * Layout.slabs();

  // `stride`, here and there the same, is a parameter of the launch: kept, it would take registers.
  __device__ __forceinline__ WholeTile(uint32_t tile, const uint16_t* begin, int64_t stride)
      : tile_(tile) {
    const Share share(tile);
    own_ = begin + (share.row * stride + share.column);
  }

  __device__ __forceinline__ void copy(int number, int64_t stride) const {
    const int first = number / Layout.slabs() * Share::kRows, slab = number % Layout.slabs();
    cp_async_16(Share(tile_).at(first, slab),
                own_ + (first * stride + slab * Layout.slab_columns()), true);
  }

 private:
  uint32_t tile_;
  const uint16_t* own_;
};

// A chunk of which the first `bytes` exist, in pieces of `width`. By elements where no cp.async is
// as narrow: then the thread waits for its loads.
__device__ __forceinline__ void copy_pieces(uint32_t smem, const unsigned char* global, int bytes,
                                            int width) {
  if (width == 16) return cp_async_first<16>(smem, global, bytes);
#pragma unroll 1
  for (int at = 0; at < kChunkBytes; at += width) {
    const int left = min(bytes - at, width), of_piece = left > 0 ? left : 0;
    if (width == 8) {
      cp_async_first<8>(smem + at, global + at, of_piece);
    } else if (width == 4) {
      cp_async_first<4>(smem + at, global + at, of_piece);
    } else {
      const auto* const element = reinterpret_cast<const uint16_t*>(global + at);
      st_shared_b16(smem + at, of_piece > 0 ? __ldg(element) : uint16_t{0});
    }
  }
}

// Rows that lie anywhere: `row_at` gives where a row of the tile begins, or null. Slow, so it is
// kept short.
template <TileLayout Layout, int Threads, class RowAt>
__device__ __forceinline__ void copy_rows(uint32_t tile, const RowAt& row_at, int columns,
                                          int width) {
  using Share = CopyShare<Layout, Threads>;
  const Share share(tile);
#pragma unroll 1
  for (int first = 0; first < Layout.rows; first += Share::kRows) {
    if (!share.has(first)) break;
    const auto* const row = reinterpret_cast<const unsigned char*>(row_at(first + share.row));
#pragma unroll 1
    for (int slab = 0; slab < Layout.slabs(); ++slab) {
      const int column = slab * Layout.slab_columns() + share.column;
      const int left = row == nullptr ? 0 : min((columns - column) * 2, kChunkBytes);
      copy_pieces(share.at(first, slab), row + column * 2, left > 0 ? left : 0, width);
    }
  }
}

// A block of neighbouring rows of a sequence to shared memory: the tensor's rows from `first` on;
// `left` of them exist.
template <TileLayout Layout, int Threads>
__device__ __forceinline__ void copy_block(uint32_t tile, const CopiedRows& from, int batch,
                                           int head, int first, int left) {
  if (from.in_chunks) {
    copy_chunks<Layout, Threads>(tile, from.tensor.at(batch, head, first), from.tensor.strides.row,
                                 left, from.tensor.columns);
  } else {
    const auto row_at = [&](int row) {
      return row < left ? from.tensor.at(batch, head, first + row) : nullptr;
    };
    copy_rows<Layout, Threads>(tile, row_at, from.tensor.columns, from.width);
  }
}

}  // namespace fa3::ampere
