// SPDX-License-Identifier: Apache-2.0
// Operands of mma.sync in shared memory: where a lane's ldmatrix rows lie, step by step. The
// swizzle permutes chunks by a row's low bits, which are the lane's own in every 16 rows: so a
// lane has one address and one chunk, and a step is an exclusive or.
#pragma once

#include "engine/cuda/ptx/fragment.h"
#include "engine/cuda/ptx/instructions.cuh"
#include "engine/cuda/ptx/smem.cuh"
#include "engine/cuda/tile/tile_layout.h"

namespace fa3::ampere {

using namespace cuda;

// Four 8 x 8 matrices of 16 rows by two chunks, in the order of an operand's registers.
enum class MatrixOrder {
  kRowsFirst,    // A along columns; B along rows (transposed): rows 0-7 and 8-15, then chunk 1
  kChunksFirst,  // B along columns; A along rows (transposed): chunks 0 and 1, then rows 8-15
};

template <TileLayout Layout, MatrixOrder Order>
class Operand {
 public:
  // first_row: of the tile, a multiple of 8. first_pair: where the warps take turns, which of each
  // 2, 4, ... pairs of chunks is this one's; load() then counts the first warp's.
  __device__ __forceinline__ Operand(uint32_t tile, int first_row, int first_pair = 0) {
    const int lane = int(thread_in_block() % kWarpSize), half = lane / 8 % 2, upper = lane / 16;
    const int row = lane % 8 + 8 * (Order == MatrixOrder::kRowsFirst ? half : upper);
    const int chunk = Order == MatrixOrder::kRowsFirst ? upper : half;
    row_ = tile + uint32_t((first_row + row) * Layout.row_bytes() +
                           first_pair / kPairs * Layout.slab_bytes());
    chunk_ = uint32_t((Layout.swizzled_chunk(chunk, row) ^ first_pair % kPairs * 2) * kChunkBytes);
  }

  // Chunks 2 * pair and the next of the 16 rows number `rows`.
  __device__ __forceinline__ void load(int rows, int pair, uint32_t (&matrices)[4]) const {
    ldmatrix_x4(at(rows, pair), matrices);
  }
  __device__ __forceinline__ void load_transposed(int rows, int pair,
                                                  uint32_t (&matrices)[4]) const {
    ldmatrix_x4_trans(at(rows, pair), matrices);
  }

 private:
  static constexpr int kPairs = Layout.row_bytes() / (2 * kChunkBytes);  // of a slab

  __device__ __forceinline__ uint32_t at(int rows, int pair) const {
    const int constant = rows * 16 * Layout.row_bytes() + pair / kPairs * Layout.slab_bytes();
    return (row_ + (chunk_ ^ uint32_t(pair % kPairs * 2 * kChunkBytes))) + uint32_t(constant);
  }

  uint32_t row_;
  uint32_t chunk_;
};

template <TileLayout Layout>
using RowsFirst = Operand<Layout, MatrixOrder::kRowsFirst>;
template <TileLayout Layout>
using ChunksFirst = Operand<Layout, MatrixOrder::kChunksFirst>;

}  // namespace fa3::ampere
