// SPDX-License-Identifier: Apache-2.0
// A part of V, some keys of a head: how a warp transposes 64 of its channels where they lie in
// shared memory, and which scales the forward kernel is given for its keys. Next: prepare_e4m3.cu,
// transpose_ahead.cuh.
#pragma once

#include "engine/cuda/ptx/instructions.cuh"
#include "engine/hopper/fp8/prepare_e4m3.h"
#include "engine/hopper/ptx/lanes.cuh"
#include "engine/hopper/tile/transpose_square.cuh"

namespace fa3::hopper {

inline constexpr int kPartBlocks = kPreparedKeys / kDescaleRows;
static_assert(kDescaleRows == tile::kSquare);
inline constexpr int kPartBytes = kPartBlocks * tile::kSquareBytes;  // of a warp's channels
inline constexpr int kMostPartWarps = 256 / tile::kSquare;

struct ValuePart {
  int sequence, head;
  int number;  // in the head
};

__device__ __forceinline__ float scale_of(const Descales<const float>& scales, int64_t batch,
                                          int64_t head, int64_t block) {
  return scales.data ? *scales.at(batch, head, block) : 1.0f;
}

// By a warp, where it lies. Whether the lane's part of it is not all zeros.
__device__ __forceinline__ bool transpose_square(uint32_t square) {
  const tile::SquareLane<tile::kSquare> lane;
  uint32_t all = 0;
#pragma unroll
  for (int block = 0; block < tile::blocks_of_square(tile::kSquare); ++block) {
    all |= lane.transpose_diagonal(square, block);
  }
  all |= lane.transpose_above(square, 1, 0);
  return (all & 0x7f7f7f7fu) != 0;
}

// The largest scale of the head's values, by a warp.
__device__ __forceinline__ float largest_scale(const E4m3Preparation& p, int keys, int sequence,
                                               int head) {
  const bool one = p.value_scales.scaling != Scaling::per_block;
  const int blocks = one ? 1 : int(descale_blocks(keys));
  int largest = 0;  // of positive floats, bits are in their order
  for (int block = ptx::lane(); block < blocks; block += ptx::kLanes) {
    largest = max(largest, __float_as_int(scale_of(p.value_scales, sequence, head, block)));
  }
  largest = __reduce_max_sync(0xffffffff, largest);
  return largest > 0 ? __int_as_float(largest) : 1.0f;
}

// What values of this scale lose against the head's largest. Not more than 2^-100, so that the
// inverse stays finite. All zeros lose nothing: whatever their scale, their P count.
__device__ __forceinline__ float boost_of(bool all_zero, float scale, float largest) {
  return all_zero ? 0.0f : fmaxf(log2f(scale / largest), -100.0f);
}

// The scales of a part's blocks of keys, by a warp. all_zero: lane i says it of V of block i.
// `keys`: of the sequence.
__device__ __forceinline__ void write_scales(const E4m3Preparation& p, int keys,
                                             const ValuePart& part, bool all_zero) {
  const float largest = largest_scale(p, keys, part.sequence, part.head);
  const int lane = int(ptx::lane());
  if (lane >= kPartBlocks) return;
  const int64_t row = int64_t{part.sequence} * p.kv_heads + part.head;
  const int block = part.number * kPartBlocks + lane;
  const bool used = block * kDescaleRows < keys;
  const float value = used ? scale_of(p.value_scales, part.sequence, part.head, block) : largest;
  const float boost = boost_of(all_zero, value, largest);
  p.prepared[row * (p.padded_keys / kDescaleRows) + block] = {
      .key = used ? scale_of(p.key_scales, part.sequence, part.head, block) : 1.0f,
      .boost = boost,
      .unboost = cuda::ex2(-boost)};
  if (block == 0) p.largest_of_heads[row] = largest;
}

}  // namespace fa3::hopper
