// SPDX-License-Identifier: Apache-2.0
// A lane's part in a step of byte_square.h: four parts of a square change places.
#pragma once

#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/ptx/smem.cuh"
#include "engine/hopper/tile/byte_square.h"

namespace fa3::hopper::tile {

// What a lane knows of its chunks in squares of any place. Steps are a warp's, and give the bits of
// what the lane has moved.
template <int Square>
class SquareLane {
 public:
  __device__ __forceinline__ SquareLane()
      : load_(load_offset(lane(), true, Square)), store_(store_offset(lane(), true, Square)) {}

  // A block on the diagonal, and one above it.
  __device__ __forceinline__ uint32_t transpose_diagonal(uint32_t square, int block) const {
    const uint32_t bits = diagonal_pair(block, 0).bits(Square);
    const uint32_t from = load_ ^ bits, to = square + (store_ ^ beside() ^ bits);
    return move(square + from, square + (from ^ kRight), to, to + kDown);
  }
  __device__ __forceinline__ uint32_t transpose_above(uint32_t square, int distance,
                                                      int row) const {
    const PartPair pair = pair_above(distance, row, 0);
    const uint32_t above = pair.bits(Square), other = pair.transposed().bits(Square);
    const uint32_t from = load_ ^ above, from_other = square + (load_ ^ beside() ^ other);
    const uint32_t to = store_ ^ above, to_other = square + (store_ ^ beside() ^ other);
    return move(square + from, from_other, to_other, square + to) |
           move(square + (from ^ kRight), from_other + kDown, to_other + kDown,
                square + (to ^ kRight));
  }

 private:
  // To the part beside one in an even column, and to the one below one in an even row.
  static constexpr uint32_t kRight = kChunkBytes, kDown = kChunkBytes * Square;

  static __device__ __forceinline__ int lane() { return int(ptx::lane()); }
  // What an offset changes by where the other part lies beside the first and not below it.
  static __device__ __forceinline__ uint32_t beside() { return lane() / 16 * (kRight + kDown); }

  // Two pairs of parts.
  static __device__ __forceinline__ uint32_t move(uint32_t first, uint32_t second,
                                                  uint32_t first_to, uint32_t second_to) {
    uint32_t a[4], b[4];
    ptx::ldmatrix_x4_trans(first, a);
    ptx::ldmatrix_x4_trans(second, b);
    __syncwarp();
    store(first_to, a);
    store(second_to, b);
    return a[0] | a[1] | a[2] | a[3] | b[0] | b[1] | b[2] | b[3];
  }
  static __device__ __forceinline__ void store(uint32_t to, const uint32_t (&part)[4]) {
    const uint32_t selector = join_selector(lane()), other = selector ^ kOtherMatrix;
    const auto& [a, b, c, d] = part;
    ptx::stmatrix_x4(to, {__byte_perm(a, b, selector), __byte_perm(a, b, other),
                          __byte_perm(c, d, selector), __byte_perm(c, d, other)});
  }

  const uint32_t load_, store_;
};

}  // namespace fa3::hopper::tile
