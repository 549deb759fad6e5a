// SPDX-License-Identifier: Apache-2.0
// The rounding of peaked rows' largest P, taken out of O.
//
// Where a reference stays, the largest P of a row is no power of two, so it is rounded like any
// other when it becomes an operand; the row's sum has it unrounded. Where one key has most of a
// row's probability, that is most of O's error. So a warp whose rows are peaked notes the largest P
// that each lane has seen of each row, and the finished O is divided by the sum that has these
// rounded. The LSE keeps the sum as it is.
//
// Whether rows are peaked is decided when the reference has been taken, warp by warp. Guarded steps
// of other rows pay nothing: the guard of peaked ones always fires, and that is where P is looked
// at. Used by consumer_softmax.cuh and store_tile.cuh.
#pragma once

#include "engine/cuda/softmax/epilogue.cuh"
#include "engine/cuda/softmax/peaked_rows.h"
#include "engine/hopper/forward/consumer/consumer_state.cuh"
#include "engine/hopper/ptx/lanes.cuh"

namespace fa3::hopper {

// In WorkTile::fired_guards, above what it counts.
inline constexpr unsigned char kPeaked = 0x80, kMostCounted = 0x7f;

// Peaked rows of long runs take their reference from at least this number of keys.
inline constexpr int kPeakedReferenceKeys = 512;

template <ForwardConfig C>
__device__ __forceinline__ float& largest_p(const ConsumerState<C>& c, int row) {
  // Two forms of one number, of which either spills elsewhere.
  const unsigned lane = C.consumers() > 2 ? thread_in_block() % kWarpSize : unsigned(ptx::lane());
  return c.smem.largest_p.of_thread[row][c.warp() * kWarpSize + lane];
}

template <ForwardConfig C>
__device__ __forceinline__ void mark_peaked(const ConsumerState<C>& c, bool peaked) {
  if (ptx::lane() == 0) {
    unsigned char& marks = c.work_tile().fired_guards[c.warp()];
    marks = peaked ? marks | kPeaked : marks & kMostCounted;
  }
  __syncwarp();
}

// Behind each online step, with the rows' sums; the last one before guarded steps decides. Of a
// masked block a row has seen one half, more or less. Peaked rows of long runs take their reference
// from more keys: then the largest P of all is one of these more often.
template <ForwardConfig C>
__device__ __forceinline__ void look_for_peaked_rows(ConsumerState<C>& c,
                                                     const float (&sum)[kRowsPerThread]) {
  using Score = typename ConsumerState<C>::Score;
  if (!c.tile.guarded_steps_follow()) return;
  constexpr float kHalfBlockLimit =
      cuda::peaked_below(C.block_n / 2, Score::kTop, cuda::kPeakedShareOf16Bits);
  const int block = c.tile.block();
  const int seen = c.tile.blocks().count - block;
  const int unmasked = c.masked_from() - block;
  const float limit = kHalfBlockLimit * float(seen + (unmasked > 0 ? unmasked : 0));
  int low_sums = 0;
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    low_sums += __popc(__ballot_sync(0xffffffff, sum[row] < limit));
  }
  if (low_sums < int(cuda::enough_low_sums(kRowsPerThread * kWarpSize))) return;
  constexpr int kBlocks = kPeakedReferenceKeys / C.block_n;
  if (seen < kBlocks && block >= cuda::kLongRun - kBlocks) {
    c.tile.take_online_steps_to(block - (kBlocks - seen));
    return;
  }
  c.tile.set_mode(TileMode::kPeaked);
  mark_peaked(c, true);
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) largest_p(c, row) = 0.0f;
}

template <ForwardConfig C>
__device__ __forceinline__ void note_largest_p(ConsumerState<C>& c, const float (&p)[C.block_n / 2],
                                               float (&largest)[kRowsPerThread]) {
#pragma unroll
  for (int i = 0; i < C.block_n / 2; i += 2) {
    float& of_row = largest[cuda::fragment_row_index(i)];
    of_row = fmaxf(fmaxf(of_row, p[i]), p[i + 1]);
  }
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) largest_p(c, row) = largest[row];
}

template <ForwardConfig C>
__device__ __forceinline__ void note_largest_p(ConsumerState<C>& c,
                                               const float (&p)[C.block_n / 2]) {
  float largest[kRowsPerThread] = {largest_p(c, 0), largest_p(c, 1)};
  note_largest_p(c, p, largest);
}

// Rows that have moved have a larger P now, which is a power of two.
template <ForwardConfig C>
__device__ __forceinline__ void forget_and_note_largest_p(ConsumerState<C>& c,
                                                          const float (&p)[C.block_n / 2],
                                                          const StepResult& step) {
  float largest[kRowsPerThread];
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    largest[row] = step.rescale[row] == 1.0f ? largest_p(c, row) : 0.0f;
  }
  note_largest_p(c, p, largest);
}

// The rest of the tile is taken by steps that make a row's largest P a power of two.
template <ForwardConfig C>
__device__ __forceinline__ void stop_noting_largest_p(ConsumerState<C>& c) {
  mark_peaked(c, false);
}

// The rows of a finished tile, with sums that O is divided by, and references that still give the
// LSE.
template <ForwardConfig C>
__device__ __forceinline__ RowState with_rounded_largest_p(const ConsumerState<C>& c,
                                                           const WorkTileOf<C>& work,
                                                           const RowState& rows) {
  static_assert(C.types().product == Element::kBf16);
  RowState rounded = rows;
  if ((work.fired_guards[c.warp()] & kPeaked) == 0) return rounded;
#pragma unroll
  for (int row = 0; row < kRowsPerThread; ++row) {
    const float exact = largest_p(c, row);
    const uint32_t upper_half = pack_pair<Element::kBf16>(0.0f, exact);
    const float error = cuda::quad_sum(__uint_as_float(upper_half) - exact);
    const float factor = 1.0f + error * cuda::inverse_of(cuda::quad_sum(rows.sum[row]));
    rounded.sum[row] *= factor;
    rounded.ref[row] -= lg2(factor);
  }
  return rounded;
}

}  // namespace fa3::hopper
